"""The complete state of a method from a checkpoint of its authors: encoders, heads, queue and centre.

With it a run begins where theirs ended, as the stage one of HIRL: `load_foreign_state(method, file)` after `build`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hirl.encoders.checkpoints import strip_wrappers
from hirl.encoders.encoder_file import Weights, fit_weights, load_content
from hirl.methods.base import Method

DROPPED = ""  # for tensors that have no counterpart here
_MOCO_V2 = (
    (r"encoder_q\.fc\.", "query.head.layers."),
    (r"encoder_q\.", "query.backbone."),
    (r"encoder_k\.fc\.", "key.head.layers."),
    (r"encoder_k\.", "key.backbone."),
)
_DINO = (
    (r"head\.last_layer\.weight_g", DROPPED),  # checked to be 1: rows of unit length
    (r"head\.last_layer\.weight_v", "{network}.head.last_layer.weight"),
    (r"(backbone|head)\.", r"{network}.\1."),
)


@dataclass(frozen=True)
class ForeignState:
    """All tensors of a checkpoint, by their names in the method here."""

    kind: str  # of method
    file: Path
    weights: Weights
    arguments: dict[str, Any]  # of the method: inferred from head shapes, plus settings for a trained method
    description: str  # of what the file has

    def load_into(self, method: Method) -> None:
        """Load all of it into a method that has been built, or raise a ValueError with the list of what does not fit.

        A queue may be shorter here: it gets the newest keys. Without one in the file it stays random.
        """
        weights, own = dict(self.weights), method.state_dict()
        if "queue" in own:
            count = len(own["queue"])
            weights["queue"] = weights["queue"][-count:] if "queue" in weights else own["queue"]
        fit_weights(method, weights, source=str(self.file), name=self.kind)


def load_foreign_state(method: Method, file: Path) -> None:
    """Load all tensors of the method's authors' checkpoint into its networks, or raise a ValueError and load none."""
    kind = type(method).__name__
    if kind not in STATES:
        raise ValueError(f"checkpoints of {kind} are not known with their heads: choose one of {', '.join(STATES)}")
    state = find_foreign_state(type(method), file)
    if state is None:
        dictionaries = " and ".join(map(repr, STATES[kind].renames))
        raise ValueError(f"{str(file)!r} has no networks with heads in {dictionaries}, as a checkpoint of {kind} has")
    state.load_into(method)


def find_foreign_state(kind: type[Method], file: Path) -> ForeignState | None:
    """The state in a checkpoint of the method's authors; None for any other file, also one without heads."""
    known = STATES.get(kind.__name__)
    if known is None:
        return None
    content = load_content(file)
    found: Weights = {}
    for within, renames in known.renames.items():
        for name, tensor in (strip_wrappers(content.get(within)) or {}).items():
            place = _place(name, renames)
            if place != DROPPED:
                found[place] = tensor
            elif not torch.allclose(tensor, torch.ones_like(tensor)):
                raise ValueError(f"{name} of {str(file)!r} is not 1: prototypes have unit length here")
    if not known.required <= found.keys():
        return None
    description, arguments = known.read(found)
    return ForeignState(kind.__name__, file, found, arguments, description)


def _place(name: str, renames: tuple[tuple[str, str], ...]) -> str:
    for pattern, to in renames:
        if re.match(pattern, name):
            return DROPPED if to == DROPPED else re.sub(rf"^{pattern}", to, name)
    return name


def _read_moco_v2(found: Weights) -> tuple[str, dict[str, Any]]:
    """Turn the queue (D, K) into (K, D) with its oldest key first; without a key network it is that of the queries."""
    arguments: dict[str, Any] = {"temperature": 0.2, "dim": len(found["query.head.layers.2.weight"])}
    arguments["hidden"] = len(found["query.head.layers.0.weight"])
    pointer = found.pop("queue_ptr", torch.zeros(1))
    queue = "no queue, which starts with random keys"
    if "queue" in found:
        found["queue"] = found["queue"].T.roll(-int(pointer), 0).contiguous()
        arguments["queue_length"] = len(found["queue"])
        queue = f"a queue of {len(found['queue']):,} keys"
    if any(name.startswith("key.") for name in found):
        return f"query and key network with their heads, {queue}", arguments
    own = {name: tensor for name, tensor in found.items() if name.startswith("query.")}
    found |= {f"key.{name.removeprefix('query.')}": tensor for name, tensor in own.items()}
    return f"query network with its head, which the key network starts from as well, {queue}", arguments


def _read_dino(found: Weights) -> tuple[str, dict[str, Any]]:
    found["centre"] = found["centre"].flatten()  # there (1, K)
    prototypes, dim = found["teacher.head.last_layer.weight"].shape
    hidden = len(found["teacher.head.mlp.0.weight"])
    norms = "teacher.head.mlp.1.running_mean" in found
    over = {"frozen_epochs": 0.0, "teacher_temperature_start": 0.07}  # what the first epochs need
    arguments = {"dim": dim, "hidden": hidden, "prototypes": prototypes, "head_batch_norm": norms} | over
    return "student and teacher with their heads, centre", arguments


@dataclass(frozen=True)
class _Layout:
    """How the authors of a method lay out its checkpoints.

    renames: by dictionary in the file, from the names there to the names here
    required: tensors a file must have to be recognised, by their names here
    read: brings the tensors into the shapes here; says what they are, and the arguments of a method that goes on
    """

    renames: dict[str, tuple[tuple[str, str], ...]]
    required: frozenset[str]
    read: Callable[[Weights], tuple[str, dict[str, Any]]]


STATES = {
    "MoCoV2": _Layout(
        {"state_dict": _MOCO_V2},
        frozenset({"query.head.layers.0.weight", "query.head.layers.2.weight"}),
        _read_moco_v2,
    ),
    "DINO": _Layout(
        {
            **{
                network: tuple((pattern, to.replace("{network}", network)) for pattern, to in _DINO)
                for network in ("student", "teacher")
            },
            "dino_loss": ((r"center", "centre"),),
        },
        frozenset({"teacher.head.mlp.0.weight", "teacher.head.last_layer.weight", "centre"}),
        _read_dino,
    ),
}
