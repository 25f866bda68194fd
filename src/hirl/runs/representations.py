"""z⁰…zᴸ of a run: its method and heads rebuilt from its configuration and its last checkpoint."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method, Plan
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.encoder_file import network_hash
from hirl.runs.folder import Run
from hirl.train.joint import Joint

OURS = "hirl.methods."


class Trained(nn.Module):
    """Images (B, C, H, W) → (B, 1 + L, D): z⁰ as the tree's features are made, then what each head gives of it.

    A baseline, and a run that has not reached its first tree, have z⁰ alone.
    """

    def __init__(self, method: Method, paths: SemanticPaths | None) -> None:
        super().__init__()
        self.method = method
        self.paths = paths

    @property
    def tree(self) -> PrototypeTree | None:
        return None if self.paths is None else self.paths.tree

    @property
    def sha256(self) -> str:
        weights = {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}
        return network_hash(weights, type(self.method).__name__, self.method.arguments)

    def forward(self, images: Tensor) -> Tensor:
        z0 = self.method.embed(images).float()  # (B, D)
        if self.paths is None:
            return z0[:, None]
        return torch.cat((z0[:, None], self.paths.encode(z0)), dim=1)


def load_trained(run: Run, *, method: str | type[Method] | None = None) -> Trained:
    """The trained method and heads of a run, in eval mode and frozen.

    `method`: the class, or its path, of a run whose method is not of hirl. It is never taken from the run's folder, for
    a path in a file names code to be run.
    """
    config = run.config
    if not run.checkpoint_file.is_file():
        raise ValueError(f"{str(run.folder)!r} has no last.ckpt, which keeps z0's head and those of the levels")
    kind = _method_class(run, config["method"]["class_path"], method)
    state = load_checkpoint(run.checkpoint_file)
    epochs = config["epochs"]
    try:
        built = kind(**config["method"]["init_args"])
    except TypeError as error:
        raise ValueError(f"{kind.__name__} does not take the arguments in {str(run.config_file)!r}: {error}") from error
    steps_an_epoch = max(1, state["step"] // epochs)
    built.build(Plan(epochs, steps_an_epoch, config["batch_size"], config["image_size"], config["channels"]))
    joint = Joint(built, _paths(config, state["joint"], built.dim))
    weights = state["joint"]
    if joint.paths is None:
        weights = {name: value for name, value in weights.items() if not name.startswith("paths.")}
    try:
        joint.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {str(run.checkpoint_file)!r} do not fit {kind.__name__} as this hirl builds it: "
            f"{' '.join(str(error).split())}"
        ) from error
    trained = Trained(built, joint.paths).eval()
    return trained.requires_grad_(False)


def _method_class(run: Run, path: str, given: str | type[Method] | None) -> type[Method]:
    if given is None and not path.startswith(OURS):
        raise ValueError(
            f"{str(run.folder)!r} was trained by the method {path!r}, which is not of hirl: give its class with method"
        )
    asked = path if given is None else given
    kind: Any = asked
    if isinstance(asked, str):
        module, _, name = asked.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module or OURS.rstrip(".")), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"there is no method {asked!r}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"method {asked!r} is no class of a method: it must be a subclass of hirl.methods.Method")
    if kind.__name__ != path.rsplit(".", 1)[-1]:
        raise ValueError(f"{str(run.folder)!r} was trained by the method {path!r}, not by {kind.__name__}")
    return kind


def _paths(config: dict[str, Any], state: dict[str, Any], dim: int) -> SemanticPaths | None:
    tree = state.get("paths._extra_state") or {}
    hierarchy = config["hierarchy"]
    if hierarchy is None or not tree:
        return None
    levels = [len(tree[f"prototypes.{level}"]) for level in range(sum(name.startswith("proto") for name in tree))]
    return SemanticPaths(dim, levels, head_layers=hierarchy["head_layers"])
