"""The encoder and the tree of a run: from their files, or from a checkpoint if it is unfinished or they are damaged."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from hirl.data.views.normalisation import Normalisation, default_normalisation
from hirl.encoders.encoder_file import EncoderMetadata, load_encoder, save_encoder
from hirl.hierarchy.tree import PrototypeTree, is_tree
from hirl.methods.base import Method
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import RunFolder
from hirl.runs.representations import TREE, Trained, load_trained

AGAIN = "repeat the pretrain command to rewrite it"


class StoredEncoder(NamedTuple):
    """An encoder on disk. `state` is None, or says that its run is unfinished and how far it is.

    `trained`: the method and heads of the checkpoint, if the encoder comes from one.
    """

    weights: dict[str, Tensor]
    metadata: EncoderMetadata
    file: Path
    state: str | None = None
    trained: Trained | None = None


def find_encoder(run: RunFolder, *, method: str | type[Method] | None = None) -> StoredEncoder:
    """The encoder in encoder.safetensors, else the one in the checkpoint, with a warning that says so.

    `method`: the class of the run's method, if it is not part of hirl; a checkpoint needs it.
    """
    damage = None
    if run.encoder_file.is_file() and not run.has_own_checkpoint:
        try:
            return StoredEncoder(*load_encoder(run.encoder_file), run.encoder_file)
        except ValueError as error:
            damage = error
    if not run.checkpoint_file.is_file():
        if damage is not None:
            raise ValueError(f"{damage}; there is no last.ckpt to take the encoder from") from damage
        if run.finished:
            raise ValueError(f"{str(run.folder)!r} has neither encoder.safetensors nor last.ckpt: its encoder is lost")
        if run.saved:
            raise ValueError(f"{str(run.folder)!r} is unfinished and its last.ckpt is missing: there is no encoder")
        run.check_exists()
        if run.failure is not None:
            raise ValueError(f"{str(run.folder)!r} has no encoder: training stopped since {run.failure}")
        raise ValueError(f"{str(run.folder)!r} has no encoder yet: training writes it after its last epoch")
    trained = load_trained(run, method=method)
    built, plan = trained.method, trained.method.plan
    config = run.config
    own = default_normalisation(config["channels"])
    metadata = _metadata(run, built, Normalisation(tuple(config["mean"] or own.mean), tuple(config["std"] or own.std)))
    weights = {name: tensor.detach() for name, tensor in built.encoder.state_dict().items()}
    state = None
    if trained.step < plan.steps:
        state = f"unfinished: epoch {trained.step / plan.steps_per_epoch:.4g} of {plan.epochs}"
        if not run.has_own_checkpoint:
            warnings.warn(f"{str(run.folder)!r} is {state}; its last checkpoint is used", stacklevel=2)
    elif not run.has_own_checkpoint:
        why = "is missing" if damage is None else "is damaged"
        warnings.warn(f"{str(run.encoder_file)!r} {why}; the encoder is taken from last.ckpt; {AGAIN}", stacklevel=2)
    return StoredEncoder(weights, metadata, run.checkpoint_file, state, trained)


def write_encoder(run: RunFolder, method: Method, normalisation: Normalisation) -> None:
    """Write encoder.safetensors, of a method that has been trained on images of this normalisation."""
    save_encoder(run.encoder_file, method.encoder, _metadata(run, method, normalisation))


def _metadata(run: RunFolder, method: Method, normalisation: Normalisation) -> EncoderMetadata:
    return EncoderMetadata(
        method.backbone,
        method.encoder_args,
        method.plan.image_size,
        normalisation.mean,
        normalisation.std,
        run.provenance,
    )


def find_tree(run: RunFolder) -> PrototypeTree | None:
    """The tree in tree.safetensors; of an unfinished run, or if the file is damaged, the one in the checkpoint."""
    if run.exists and run.config["hierarchy"] is None:
        return None
    has_checkpoint = run.checkpoint_file.is_file()
    if run.has_own_checkpoint or (has_checkpoint and not run.encoder_file.is_file() and not run.finished):
        return _tree_of(run.checkpoint_file)
    damage = None
    if run.tree_file.is_file():
        try:
            return PrototypeTree.load(run.tree_file)
        except ValueError as error:
            damage = error
            if not has_checkpoint:
                raise
    if not has_checkpoint:
        return None
    try:
        tree = _tree_of(run.checkpoint_file)
    except ValueError as error:
        raise ValueError(f"{damage}, and {error}" if damage else str(error)) from error
    if tree is not None:
        why = "is missing" if damage is None else "is damaged"
        warnings.warn(f"{str(run.tree_file)!r} {why}; the tree is taken from last.ckpt; {AGAIN}", stacklevel=2)
    return tree


def _tree_of(checkpoint: Path) -> PrototypeTree | None:
    tensors = load_checkpoint(checkpoint)["joint"].get(TREE)
    return PrototypeTree.from_tensors(tensors) if tensors else None


def is_complete(run: RunFolder) -> bool:
    """Whether a run is finished, and has all that it should have in files that can be read.

    That is its encoder, its tree and the comparison with its start, which cannot be made again without last.ckpt.
    """
    if not run.finished or (run.is_adapted and run.adaptation is None and run.checkpoint_file.is_file()):
        return False
    try:
        load_encoder(run.encoder_file)
    except (ValueError, OSError):
        return False
    return run.config["hierarchy"] is None or is_tree(run.tree_file)
