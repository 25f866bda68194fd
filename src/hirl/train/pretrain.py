"""Assembles data, method, hierarchy and loop into a run, and continues one that was stopped."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from lightning_fabric import Fabric

from hirl.config import to_plain
from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.sources import Skipped, open_images
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.memory import in_memory
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Plan
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.runs.folder import Run, folder_name
from hirl.seeds import mix_seed
from hirl.train.initial_weights import start_from
from hirl.train.loop import HEADS, NETWORKS, Loop, NotFinite, Stopped
from hirl.train.messages import failure_message, plan_summary
from hirl.train.online_knn import OnlineKnn
from hirl.train.processes import strategy
from hirl.train.report import Report, Silent
from hirl.train.signals import stop_signals

LARGE_IMAGE = 224


def pretrain(
    data: Any,
    method: Method,
    hierarchy: Hierarchy | None = Hierarchy(),  # noqa: B008 (frozen)
    *,
    out: str | os.PathLike[str] | None = None,
    epochs: int = 100,
    batch_size: int = 256,
    image_size: int | None = None,
    seed: int = 0,
    split: str | None = None,
    channels: int = 3,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    strict: bool = False,
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true",
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    devices: int | Literal["auto"] = "auto",
    nodes: int = 1,
    compile: bool = False,  # noqa: A002 (torch's own word)
    accumulate: int = 1,
    workers: int | None = None,
    knn_every: int = 10,
    checkpoint_minutes: float = 10.0,
    init_from: str | None = None,
    wandb: str | None = None,
) -> Run:
    """Trains `method` on `data`, with HIRL on top unless `hierarchy` is None, and gives the run folder.

    Args:
        data: A folder of images or anything else `hirl.data.open_images` takes.
        method: One of DINO, IBOT, MoCoV2, MoCoV3, SimSiam, SwAV, or a class of your own.
        hierarchy: HIRL on top of the method; null for the baseline.
        out: The run folder; by default named below runs/ after data, method, arm and seed. The same call continues an
            unfinished run in it.
        epochs: Passes over all images.
        batch_size: Images a step, over all processes and accumulated parts.
        image_size: The side of a global view; by default that of small equal-sized images, else 224.
        seed: Of everything that is drawn.
        split: The part of the data to train on; by default its training part.
        channels: 3, or 1 for grey.
        mean: What is taken off each channel, in [0, 1]; by default ImageNet's.
        std: What is divided out of each channel; by default ImageNet's.
        strict: An unreadable image ends the run; by default another takes its place and skipped.txt tells.
        precision: Of the networks' forward and backward pass.
        accelerator: What to train on; by default a GPU where there is one.
        devices: How many of them on this machine; by default all GPUs, and one process on a CPU.
        nodes: Machines that train together.
        compile: Whether torch.compile is applied to the networks.
        accumulate: Parts a batch is cut into where it does not fit at once.
        workers: Processes that read images; by default none for small images in memory, else one a core, at most 8.
        knn_every: Epochs between KNN evaluations, where there are labels; 0 for never.
        checkpoint_minutes: Between checkpoints within an epoch; there is always one at its end.
        init_from: A run folder, or an encoder's file, whose weights the encoder starts from; they must fit fully.
        wandb: The project of Weights & Biases to report to, beside metrics.jsonl and TensorBoard.
    """
    _check(epochs=epochs, batch_size=batch_size, accumulate=accumulate, seed=seed, image_size=image_size)
    check_ranges(method)  # here as well, where nothing is written yet
    skipped = Skipped()
    images = in_memory(open_images(data, split=split, channels=channels), strict=strict, skipped=skipped)
    size = image_size if image_size is not None else _own_size(images)
    _check_counts(images, hierarchy, batch_size, epochs)
    config = {
        "data": images.name if not isinstance(data, str | os.PathLike) else os.fspath(data),
        "method": method,
        "hierarchy": hierarchy,
        "epochs": epochs,
        "batch_size": batch_size,
        "image_size": size,
        "seed": seed,
        "split": split,
        "channels": channels,
        "mean": mean,
        "std": std,
        "precision": precision,
        "accumulate": accumulate,
        "init_from": init_from,
    }
    run = Run(out if out is not None else f"runs/{_run_name(str(config['data']), method, hierarchy, seed)}")

    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        precision=precision,
        strategy=strategy(accelerator, devices, nodes),
    )
    fabric.launch()
    with _locked_on_first(fabric, run):
        if fabric.is_global_zero:
            run.begin(to_plain(config))
        fabric.barrier()
        if run.finished:
            _say(fabric, run, f"{run.folder} is finished: {epochs} epochs are done")
            return run

        parallel: dict[str, Any] = {
            "rank": fabric.global_rank,
            "world_size": fabric.world_size,
            "device": fabric.device,
            "workers": workers,
            "strict": strict,
            "skipped": skipped,
            "mean": mean,
            "std": std,
        }
        views = method.views(size)
        loader = Loader(images, views, batch_size=batch_size // accumulate, seed=seed, **parallel)
        plan = Plan(epochs, len(loader) // accumulate, batch_size, size, channels)
        whole = EvaluationLoader(images, size=size, **parallel)
        torch.manual_seed(mix_seed(seed, NETWORKS))
        method.build(plan)
        if init_from is not None:
            start_from(method, init_from)
        if compile:
            for network in method.children():
                network.compile()
        paths = None
        if hierarchy is not None:
            torch.manual_seed(mix_seed(seed, HEADS))
            paths = SemanticPaths(
                method.dim,
                hierarchy.levels_for(len(images)),
                negatives=hierarchy.negatives,
                head_layers=hierarchy.head_layers,
                weight=hierarchy.weight,
                builder=hierarchy.builder,
            )
            synchronise_batch_norm(paths)
        state = load_checkpoint(run.checkpoint_file) if run.checkpoint_file.exists() else None
        start = 0 if state is None else int(state["step"])
        if fabric.is_global_zero:
            run.forget_after(start)
        _say(fabric, run, plan_summary(run, images, method, hierarchy, plan, start))

        with (
            stop_signals() as stopped,
            _observer(fabric, run, plan, method, images, loader, start, knn_every, wandb) as told,
        ):
            loop = Loop(
                fabric=fabric,
                method=method,
                paths=paths,
                hierarchy=hierarchy,
                plan=plan,
                loader=loader,
                whole=whole,
                N=len(images),
                seed=seed,
                observer=told,
                save=lambda state: save_checkpoint(run.checkpoint_file, state),
                accumulate=accumulate,
                save_every=checkpoint_minutes * 60,
                should_stop=stopped,
            )
            if state is not None:
                loop.load_state_dict(state)
            try:
                loop.fit()
            except NotFinite as error:
                words = failure_message(error, run, images, plan)
                run.log(words)
                raise ValueError(words) from error
            except Stopped:
                _say(fabric, run, f"stopped at step {loop.step} of {plan.steps}; the same command continues")
                raise
            finally:
                if fabric.is_global_zero and len(skipped):
                    skipped.write(run.skipped_file)
                    _say(fabric, run, f"warning: {skipped.summary(images.name)}; all are in {run.skipped_file}")
            if fabric.is_global_zero:
                about = {"backbone": method.backbone, "backbone_args": method.encoder_args, "image_size": size}
                run.save_encoder(method.encoder, about | dataclasses.asdict(loader.normalisation))
                run.report({"step": loop.step, "epoch": epochs, "finished": True})
                _say(fabric, run, f"done: hirl show {run.folder} tells of it")
        fabric.barrier()
    return run


def _check(*, batch_size: int, accumulate: int, **others: int | None) -> None:
    for name, value in {"batch_size": batch_size, "accumulate": accumulate, **others}.items():
        least = 0 if name == "seed" else 1
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    if batch_size % accumulate:
        raise ValueError(
            f"batch_size {batch_size} cannot be cut into {accumulate} equal parts: accumulate must divide it"
        )


def _check_counts(images: ImageSet, hierarchy: Hierarchy | None, batch_size: int, epochs: int) -> None:
    N = len(images)
    if batch_size > N:
        raise ValueError(f"batch_size {batch_size} is more than the {N} images of {images.name}: at most {N} would fit")
    if hierarchy is not None:
        hierarchy.levels_for(N)
        start = hierarchy.start_for(epochs)
        if start >= epochs:
            raise ValueError(
                f"the hierarchy would start after epoch {start} of {epochs} and never have a tree: give more epochs, "
                f"an earlier hierarchy.start_epoch (at most {epochs - 1}), or hierarchy null for a baseline"
            )


def _own_size(images: ImageSet) -> int:
    return LARGE_IMAGE if images.pixels is None else int(min(images.pixels.shape[-2:]))


def _run_name(data: str, method: Method, hierarchy: Hierarchy | None, seed: int) -> str:
    return f"{folder_name(data)}-{type(method).__name__.lower()}-{'base' if hierarchy is None else 'hirl'}-{seed}"


def _say(fabric: Fabric, run: Run, words: str) -> None:
    if fabric.is_global_zero:
        run.log(words)
        print(words, flush=True)


@contextmanager
def _locked_on_first(fabric: Fabric, run: Run) -> Iterator[None]:
    if fabric.is_global_zero:
        with run.locked():
            yield
    else:
        yield


@contextmanager
def _observer(
    fabric: Fabric,
    run: Run,
    plan: Plan,
    method: Method,
    images: ImageSet,
    loader: Loader,
    start: int,
    knn_every: int,
    wandb: str | None,
) -> Iterator[Report | Silent]:
    if not fabric.is_global_zero:
        yield Silent()
        return
    knn = None
    if knn_every and images.labels is not None:
        knn = OnlineKnn(images, method, plan, every=knn_every, normalisation=loader.normalisation, device=fabric.device)
    with Report(run, plan, method=method, start=start, wandb=wandb, evaluate=knn) as report:
        yield report
