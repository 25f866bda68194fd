"""Sets a run up: checks its arguments, fills in defaults, and builds its networks and its observer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any

import torch
from lightning_fabric import Fabric

from hirl.config import find_class
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method, Plan
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.continuing import state_to_continue
from hirl.runs.folder import Run, folder_name
from hirl.runs.images_file import OpenedImages, repair_images, write_images
from hirl.runs.stored import has_tree, is_complete
from hirl.seeds import mix_seed
from hirl.train.defaults import RECIPES, USUAL
from hirl.train.initial_weights import start_from
from hirl.train.loop import Loop
from hirl.train.machine import Machine, read_machine
from hirl.train.memory import check_memory, estimate_need
from hirl.train.messages import announce
from hirl.train.observer import Observer, SilentObserver
from hirl.train.online_knn import OnlineKnn, open_val
from hirl.train.report import Reporter
from hirl.train.settings import EPOCHS
from hirl.train.streams import HEADS, NETWORKS

MISTAKE = 2  # the exit code of a command that a ValueError or OSError ends


class SharedFailure(ValueError):  # noqa: N818
    """A failure that every process raises at the same point; the first one's has the message."""


def resolve_method(method: Method | type[Method] | str | None) -> Method | type[Method]:
    """A method, or a class whose arguments are to be chosen: of None, the usual one; of a name, the class named so.

    A class of the user's own is taken with its default arguments.
    """
    if isinstance(method, str):
        method = find_class(method, Method)
    method = USUAL if method is None else method
    if isinstance(method, type) and issubclass(method, Method):
        return method if method in RECIPES else method()
    if not isinstance(method, Method):
        raise ValueError(f"method is {method!r}, but must be a method such as hirl.methods.DINO()")
    return method


def resolve_hierarchy(hierarchy: Hierarchy | Mapping[str, Any] | None) -> Hierarchy | None:
    """HIRL's settings, from themselves or from a dict of them; None is the baseline."""
    if isinstance(hierarchy, Mapping):
        try:
            hierarchy = Hierarchy(**hierarchy)
        except TypeError as error:
            names = ", ".join(field.name for field in fields(Hierarchy))
            raise ValueError(f"hierarchy has an unknown setting ({error}): choose from {names}") from error
    if hierarchy is not None and not isinstance(hierarchy, Hierarchy):
        raise ValueError(f"hierarchy is {hierarchy!r}, but must be hirl.Hierarchy(...), or None for the baseline")
    return hierarchy


def check_arguments(*, batch_size: int | None, accumulate: int, **others: int | None) -> None:
    """Check what needs no look at the images."""
    for name, value in {"batch_size": batch_size, "accumulate": accumulate, **others}.items():
        least = 0 if name in ("seed", "keep_every") else 1
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    if batch_size is not None and batch_size % accumulate:
        raise ValueError(
            f"batch_size {batch_size} cannot be split into {accumulate} equal parts: accumulate must divide it"
        )


def check_fork(hierarchy: Hierarchy | None, *, epochs: int, stage_one: Any, fork_at: Collection[int]) -> None:
    """Check which run keeps states and which starts from one."""
    if hierarchy is None and stage_one is not None:
        raise ValueError("--stage_one is for runs with a hierarchy: a baseline has only one stage")
    if hierarchy is not None and fork_at:
        raise ValueError("--fork_at is for baselines (--hierarchy null): runs with a hierarchy start from their states")
    if any(not 1 <= epoch < epochs for epoch in fork_at):
        raise ValueError(f"--fork_at must be epochs from 1 to {epochs - 1}, not {', '.join(map(str, fork_at))}")


def check_image_count(
    images: ImageSet, hierarchy: Hierarchy | None, *, batch_size: int | None, epochs: int | None
) -> None:
    """Check that there are enough images for a batch and for the levels, and enough epochs for a tree.

    None stands for what `settle` fills in.
    """
    N = len(images)
    epochs = EPOCHS if epochs is None else epochs
    if batch_size is not None and batch_size > N:
        raise ValueError(f"batch_size {batch_size} is more than the {N} images of {images.name}: use at most {N}")
    if hierarchy is not None:
        hierarchy.levels_for(N)
        start = hierarchy.start_for(epochs)
        if epochs < 2:
            raise ValueError(
                f"a hierarchy needs at least 2 epochs, of which the first has no tree yet, not {epochs}: use more "
                "--epochs, or --hierarchy null for a baseline"
            )
        if start >= epochs:
            raise ValueError(
                f"the hierarchy would start after epoch {start} of {epochs} and never have a tree: use more --epochs, "
                f"an earlier --hierarchy.start_epoch (at most {epochs - 1}), or --hierarchy null for a baseline"
            )


def default_folder(data: str, method: Method | type[Method], hierarchy: Hierarchy | None, seed: int) -> str:
    """Return runs/DATA-METHOD-ARM-SEED."""
    kind = type(method) if isinstance(method, Method) else method
    arm = "base" if hierarchy is None else "hirl"
    return f"runs/{folder_name(data)}-{kind.__name__.lower()}-{arm}-{seed}"


@contextmanager
def open_folder(
    fabric: Fabric, run: Run, config: dict[str, Any], opened: OpenedImages
) -> Iterator[dict[str, Any] | None]:
    """Lock the run folder on the first process, and yield the state to continue from; None if there is none.

    A new run's configuration and list of images are written there; those of a run to continue must be the same. If the
    folder is refused, or all processes fail with `SharedFailure`, the first one says why and the others end quietly.
    """
    if not fabric.is_global_zero:
        code = fabric.broadcast(0, src=0)
        if code:
            raise SystemExit(code)
        try:
            yield (
                load_checkpoint(run.checkpoint_file) if run.checkpoint_file.exists() and not is_complete(run) else None
            )
        except SharedFailure as error:
            fabric.barrier()  # the first process has written all it has to: whoever sees this one end may stop it
            raise SystemExit(MISTAKE) from error
        return
    with ExitStack() as held:
        try:
            held.enter_context(run.locked())
            state = state_to_continue(run, config, opened)
            run.begin(config)
            if state is None and not run.finished:
                write_images(run, opened)
            elif (repaired := repair_images(run, opened)) is not None:
                announce(fabric, run, repaired)
        except Exception as error:
            fabric.broadcast(MISTAKE if isinstance(error, (ValueError, OSError)) else 1, src=0)
            raise
        fabric.broadcast(0, src=0)
        try:
            yield state
        except SharedFailure:
            fabric.barrier()
            raise


def load_state(loop: Loop, state: dict[str, Any], run: Run) -> None:
    """Restore the state of a checkpoint, and write the tree in it to its file if that is missing or damaged."""
    try:
        loop.load_state_dict(state)
    except (KeyError, RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{str(run.checkpoint_file)!r} does not fit this run: {reason}") from error
    tree = None if loop.paths is None else loop.paths.tree
    if tree is not None and isinstance(loop.observer, Reporter):
        loop.observer.continue_from(tree)
    if tree is not None and loop.fabric.is_global_zero and not has_tree(run):
        announce(loop.fabric, run, f"{run.tree_file} is missing or damaged: it has been written again from last.ckpt")
        loop.save_tree(tree)


def build_method(method: Method, plan: Plan, *, seed: int, init_from: str | None, compile_networks: bool) -> None:
    """Build the method's networks, with random weights or with those of another encoder."""
    torch.manual_seed(mix_seed(seed, NETWORKS))
    method.build(plan)
    if init_from is not None:
        start_from(method, init_from)
    if compile_networks:
        for network in method.children():
            network.compile()


def memory_warning(
    fabric: Fabric, method: Method, plan: Plan, *, N: int, workers: int, accumulate: int, precision: str
) -> str | None:
    """Refuse a run that does not fit into memory, with a ValueError; return a warning about one that only just fits."""
    device = fabric.device.type
    machine: Machine = fabric.broadcast(read_machine(device), src=0)  # so that all processes go on, or none
    need = estimate_need(
        method,
        plan,
        images=plan.batch_size // accumulate // fabric.world_size,
        N=N,
        workers=workers,
        device=device,
        mixed="mixed" in precision,
    )
    return None if need is None else check_memory(need, machine, batch_size=plan.batch_size, accumulate=accumulate)


def build_paths(hierarchy: Hierarchy | None, dim: int, N: int, *, seed: int) -> SemanticPaths | None:
    """Build the heads h_l for N images and z⁰ of dimension `dim`; None for a baseline."""
    if hierarchy is None:
        return None
    torch.manual_seed(mix_seed(seed, HEADS))
    paths = SemanticPaths(
        dim,
        hierarchy.levels_for(N),
        negatives=hierarchy.negatives,
        head_layers=hierarchy.head_layers,
        weight=hierarchy.weight_or_one,
        builder=hierarchy.builder,
    )
    synchronise_batch_norm(paths)
    return paths


@contextmanager
def open_observer(
    fabric: Fabric,
    run: Run,
    images: ImageSet,
    method: Method,
    plan: Plan,
    normalisation: Normalisation,
    *,
    data: Any,
    split: str | None,
    start: int,
    knn_every: int,
    workers: int | None,
    wandb: str | None,
) -> Iterator[Observer]:
    """Report from step `start` on, on the first process; the others are silent.

    `data` and `split` are what `images` were opened from: KNN is measured on another part of them if there is one.
    """
    if not fabric.is_global_zero:
        yield SilentObserver()
        return
    knn = None
    if knn_every and images.labels is not None:
        measure: dict[str, Any] = {"every": knn_every, "normalisation": normalisation, "device": fabric.device}
        measure |= {"workers": workers}
        knn = OnlineKnn(images, method, plan, val=open_val(data, split, images), **measure)
    labels = None if images.labels is None else images.labels[:, 0]
    with Reporter(run, plan, method=method, start=start, wandb=wandb, evaluate=knn, labels=labels) as reporter:
        yield reporter
