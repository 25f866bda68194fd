"""Sets a run up: claims its folder, and builds its loaders, networks and observer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from hirl.data.loader import EvaluationLoader, Loader, normalisation
from hirl.data.sources import Skipped
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import is_batched
from hirl.encoders.backbones import width
from hirl.features.open_encoder import Encoder
from hirl.features.view_cache import PlainFeatures, cached_views
from hirl.files import missing_folders, remove_empty
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.settings import ResolvedHierarchy
from hirl.methods.base import Method, Plan
from hirl.methods.foreign_state import ForeignState
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.continuing import state_to_continue
from hirl.runs.folder import LOCK
from hirl.runs.images_file import OpenedImages, repair_images, write_images
from hirl.runs.stored import has_tree, is_complete
from hirl.seeds import Stream, mix_seed
from hirl.terminal.progress import progress_bars
from hirl.train.feature_loader import FeatureLoader
from hirl.train.loop import Loop
from hirl.train.machine import Machine, read_machine
from hirl.train.memory import check_memory, estimate_need
from hirl.train.messages import announce
from hirl.train.observer import Observer, SilentObserver
from hirl.train.online_knn import OnlineKnn, open_val
from hirl.train.report import Reporter
from hirl.train.settings import Settings
from hirl.train.start import load_start, start_features
from hirl.train.unfreezing import Unfreezing

MISTAKE = 2  # the exit code of a command that a ValueError or OSError ends


class SharedFailure(ValueError):  # noqa: N818
    """A failure that every process raises at the same point; the first one's has the message."""


@contextmanager
def claim_folder(
    fabric: Fabric, run: Run, config: dict[str, Any], opened: OpenedImages
) -> Iterator[dict[str, Any] | None]:
    """Lock the run folder on the first process, and yield the state to continue from; None if there is none.

    A new run's configuration and list of images are written there; those of a run to continue must be the same. If the
    folder is refused, or all processes fail with `SharedFailure`, the first one says why and the others end quietly.
    Nothing is left of a new run that is refused before it has trained.
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
    made = missing_folders(run.folder)
    with ExitStack() as held:
        try:
            held.enter_context(run.locked())
            held.enter_context(_removed_if_refused(run, made))
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


@contextmanager
def _removed_if_refused(run: Run, made: Iterable[Path]) -> Iterator[None]:
    """Empty the folder of a new run if it is refused before its first report, and remove those that were made for it.

    The folder must be locked. `made`: from the run's own folder upwards
    """
    is_new = all(entry.name == LOCK for entry in run.folder.iterdir())
    try:
        yield
    except (ValueError, OSError) as error:
        has_trained = run.checkpoint_file.exists() or run.skipped_file.exists() or any(run.metrics())
        if is_new and not has_trained and not isinstance(error, SharedFailure):
            for entry in run.folder.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            remove_empty(made)
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
        loop.observer.tree_figures.measure(tree)  # it has been reported; the next one is compared with it
    if tree is not None and loop.fabric.is_global_zero and not has_tree(run):
        announce(loop.fabric, run, f"{run.tree_file} is missing or damaged: it has been written again from last.ckpt")
        loop.save_tree(tree)


@dataclass(frozen=True)
class RunParts:
    """What a run trains with. `paths` is None for a baseline."""

    loader: Loader | FeatureLoader
    evaluation_loader: EvaluationLoader | PlainFeatures  # of all images, unaugmented
    plan: Plan
    method: Method
    paths: SemanticPaths | None
    unfreezing: Unfreezing | None


def build(
    fabric: Fabric,
    settings: Settings,
    images: ImageSet,
    *,
    start: Encoder | None,
    heads: ForeignState | None,
    workers: int | None,
    strict: bool,
    skipped: Skipped,
    compile_networks: bool,
) -> RunParts:
    """Build the loaders, the method's networks, with random weights or those of `start`, and the heads of HIRL.

    `heads`: all of the method's networks, in place of `start` alone.
    """
    method, size = settings.method, settings.image_size
    ours: dict[str, Any] = {"rank": fabric.global_rank, "world_size": fabric.world_size, "device": fabric.device}
    reading: dict[str, Any] = {"workers": workers, "strict": strict, "skipped": skipped}
    reading |= {"mean": settings.mean, "std": settings.std}
    drawn: dict[str, Any] = {"batch_size": settings.batch_size // settings.accumulate, "seed": settings.seed}
    loader: Loader | FeatureLoader
    evaluation_loader: EvaluationLoader | PlainFeatures
    if start is not None and method.is_adapted:
        cached = start_features(fabric, settings, images, start, **reading)
        normal = normalisation(images, settings.mean, settings.std)
        loader = FeatureLoader(
            cached, len(method.views(size)), normalisation=normal, neighbours=settings.neighbours, **drawn, **ours
        )
        evaluation_loader = PlainFeatures(cached, **ours)
    else:
        loader = Loader(images, method.views(size), **drawn, **reading, **ours)
        evaluation_loader = EvaluationLoader(images, size=size, **reading, **ours)
    steps = len(loader) // settings.accumulate
    plan = Plan(settings.epochs, steps, settings.batch_size, size, settings.channels)
    torch.manual_seed(mix_seed(settings.seed, Stream.NETWORKS))
    method.build(plan)
    if heads is not None:
        heads.load_into(method)
    elif start is not None:
        load_start(method, start)
    unfreezing = Unfreezing.of(method, settings.unfreeze, plan) if settings.unfreeze else None
    if compile_networks:
        for network in method.children():
            network.compile()
    paths = build_paths(settings.hierarchy, method, settings.seed)
    return RunParts(loader, evaluation_loader, plan, method, paths, unfreezing)


def build_paths(hierarchy: ResolvedHierarchy | None, method: Method, seed: int) -> SemanticPaths | None:
    """Build the heads h_l for z⁰ of the method, or without heads the paths of its features; None for a baseline."""
    if hierarchy is None:
        return None
    torch.manual_seed(mix_seed(seed, Stream.HEADS))
    paths = SemanticPaths(
        method.dim if hierarchy.head_layers else width(method.encoder),
        hierarchy.levels,
        negatives=hierarchy.negatives,
        head_layers=hierarchy.head_layers,
        weight=hierarchy.weight,
        loss=hierarchy.loss,
        temperature=hierarchy.temperature,
        builder=hierarchy.builder,
    )
    synchronise_batch_norm(paths)
    return paths


def memory_warning(fabric: Fabric, settings: Settings, parts: RunParts, *, N: int) -> str | None:
    """Refuse a run that does not fit into memory, with a ValueError; return a warning about one that only just fits."""
    device = fabric.device.type
    machine: Machine = fabric.broadcast(read_machine(device), src=0)  # so that all processes go on, or none
    need = estimate_need(
        settings.method,
        parts.plan,
        images=settings.batch_size // settings.accumulate // fabric.world_size,
        N=N,
        workers=parts.loader.workers,
        device=device,
        mixed="mixed" in settings.precision,
    )
    if need is None:
        return None
    return check_memory(need, machine, batch_size=settings.batch_size, accumulate=settings.accumulate)


@contextmanager
def open_observer(
    fabric: Fabric,
    run: Run,
    images: ImageSet,
    settings: Settings,
    parts: RunParts,
    start: int,
    *,
    encoder: Encoder | None,
    data: Any,
    knn_every: int,
    workers: int | None,
    wandb: str | None,
) -> Iterator[Observer]:
    """Report from step `start` on, on the first process; the others are silent.

    KNN is measured if the images have labels, on another part of `data`, from which they were opened, if there is one.
    """
    if not fabric.is_global_zero:
        yield SilentObserver()
        return
    knn = None
    if knn_every and images.labels is not None:
        normal = parts.loader.normalisation
        reading: dict[str, Any] = {"mean": normal.mean, "std": normal.std, "device": fabric.device}

        def every_nth(some: ImageSet, n: int) -> EvaluationLoader | PlainFeatures:  # dealt as to one of n ranks
            if isinstance(parts.loader, FeatureLoader):
                assert encoder is not None
                cached = parts.loader.cached
                if some is not images:
                    with progress_bars() as progress:
                        more = reading | {"size": settings.image_size, "progress": progress}
                        cached = cached_views(encoder.network, encoder.sha256, some, None, 0, workers=workers, **more)
                return PlainFeatures(cached, device=fabric.device, world_size=n)
            # The val images may be where the training images, for which `workers` was given, are not.
            processes = None if is_batched(some) else workers
            return EvaluationLoader(some, size=settings.image_size, workers=processes, world_size=n, **reading)

        val = open_val(data, settings.split, images)
        knn = OnlineKnn(images, parts.method, parts.plan, val=val, every=knn_every, open_loader=every_nth)
    labels = None if images.labels is None else images.labels[:, 0]
    with Reporter(
        run, parts.plan, method=parts.method, start=start, wandb=wandb, evaluate=knn, labels=labels
    ) as reporter:
        yield reporter
