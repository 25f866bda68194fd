"""z⁰…zᴸ of a run: its method and heads, rebuilt from its configuration and last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hirl import ranks
from hirl.config import find_class
from hirl.config.classes import is_outside_hirl, known_classes
from hirl.encoders.encoder_file import network_hash
from hirl.files import Damaged
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method, Plan
from hirl.methods.facts import Facts
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import RunFolder

METHOD, PATHS = "method.", "paths."  # prefixes of the names in a checkpoint's "joint" state dict
TREE = f"{PATHS}_extra_state"


class Trained(nn.Module):
    """Images (B, C, H, W) → (B, 1 + L, D): z⁰ from the method's `embed`, which trees are built over, then z¹…zᴸ.

    A baseline, and a run that has not reached its first tree, have z⁰ alone.
    """

    def __init__(self, method: Method, paths: SemanticPaths | None, *, step: int) -> None:
        super().__init__()
        self.step = step  # of the checkpoint
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
        z0 = clustering_function(self.method, self.paths)(images).float()  # (B, D)
        if self.paths is None:
            return z0[:, None]
        return torch.cat((z0[:, None], self.paths.encode(z0)), dim=1)


def clustering_function(method: Method, paths: SemanticPaths | None) -> Callable[[Tensor], Tensor]:
    """The function from images to the clustered features: z⁰ by the method, or without heads the encoder's features."""
    return method.embed if paths is None or paths.head_layers else method.encoder


def load_trained(run: RunFolder, *, method: str | type[Method] | None = None) -> Trained:
    """The trained method and heads of a run, in eval mode and frozen.

    `method`: the class of the run's method, or its path, if it is not part of hirl. The path in the run's folder is
    not enough: importing a class runs code, and a file may not choose which.
    """
    config = run.config
    if not run.checkpoint_file.is_file():
        raise ValueError(
            f"{str(run.folder)!r} has no {run.checkpoint_file.name}, which holds the heads of z0 and of the levels"
        )
    kind = method_class(run, method)
    try:
        state = load_checkpoint(run.checkpoint_file)
    except Damaged as error:
        raise ValueError(f"{error}; restore it, or name an older checkpoint in its place") from error
    weights: dict[str, Any] = state["joint"]
    tree = PrototypeTree.from_tensors(weights[TREE]) if weights.get(TREE) else None
    try:
        built = kind(**config["method"]["init_args"])
    except TypeError as error:
        raise ValueError(f"{kind.__name__} does not take the arguments in {str(run.config_file)!r}: {error}") from error
    with ranks.alone():  # whatever the number of processes, which do not train together here
        built.build(Plan(**state["plan"]))
    paths = None
    if tree is not None:
        names = ("negatives", "head_layers", "weight", "loss", "temperature")
        own = {name: config["hierarchy"][name] for name in names}
        paths = SemanticPaths(tree.dim, tree.levels, **own)
    try:
        built.load_state_dict(_strip_prefix(METHOD, weights))
        if paths is not None:
            paths.load_state_dict(_strip_prefix(PATHS, weights))
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {str(run.checkpoint_file)!r} do not fit {kind.__name__} as this hirl builds it: "
            f"{' '.join(str(error).split())}"
        ) from error
    return Trained(built, paths, step=int(state["step"])).eval().requires_grad_(False)


def method_class(run: RunFolder, given: str | type[Method] | None) -> type[Method]:
    """The class that the run's configuration names; `given` by the user, it must be the same one."""
    path = str(run.config["method"]["class_path"])
    if given is None:
        return find_class(path, Method, file=run.config_file)
    kind = find_class(given, Method) if isinstance(given, str) else given
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"{given!r} is not a method: it must be a subclass of hirl.methods.Method")
    if kind.__name__ != run.method_name:
        raise ValueError(f"{str(run.folder)!r} was trained by the method {path!r}, not by {kind.__name__}")
    return kind


def method_facts(run: RunFolder, given: str | type[Method] | None) -> Facts:
    """What is known about the run's method; about a class from elsewhere only if the user names it."""
    if given is not None:
        return method_class(run, given).facts
    path = str(run.config["method"]["class_path"])
    known = {} if is_outside_hirl(path) else known_classes(Method)
    return known.get(run.method_name, Method).facts


def _strip_prefix(prefix: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
