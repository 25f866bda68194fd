"""`hirl.pretrain`: one run from data to encoder, or the rest of a run that was stopped."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from typing import Any, Literal

from hirl.config import to_plain
from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.sources import Skipped, open_images
from hirl.data.sources.image_list import full_path, path_of
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.memory import in_memory
from hirl.data.views.render import Normalisation
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Plan
from hirl.runs.checkpoint import save_checkpoint
from hirl.runs.continuing import state_to_fork
from hirl.runs.folder import Run
from hirl.runs.images_file import OpenedImages
from hirl.runs.stored import is_complete
from hirl.train.fork import copy_reports, lost_forks
from hirl.train.loop import Loop, NotFinite, Stopped
from hirl.train.messages import announce, failure_message, plan_summary, resolved_settings
from hirl.train.processes import Precision, launch, memory_advice
from hirl.train.settings import settle
from hirl.train.setup import (
    SharedFailure,
    build_method,
    build_paths,
    check_arguments,
    check_fork,
    check_image_count,
    default_folder,
    load_state,
    memory_warning,
    open_folder,
    open_observer,
    resolve_hierarchy,
    resolve_method,
)
from hirl.train.signals import stop_signals


def pretrain(
    data: Any,
    method: Method | None = None,
    hierarchy: Hierarchy | None = Hierarchy(),  # noqa: B008 (frozen)
    *,
    out: str | os.PathLike[str] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    split: str | None = None,
    channels: int = 3,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    strict: bool = False,
    precision: Precision = "32-true",
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    devices: int | Literal["auto"] = "auto",
    nodes: int = 1,
    compile: bool = False,  # noqa: A002 (torch's own word)
    accumulate: int = 1,
    workers: int | None = None,
    knn_every: int = 10,
    checkpoint_minutes: float = 10.0,
    keep_every: int = 0,
    init_from: str | None = None,
    stage_one: str | os.PathLike[str] | None = None,
    fork_at: tuple[int, ...] = (),
    wandb: str | None = None,
) -> Run:
    """Train `method` on `data`, with HIRL on top unless `hierarchy` is None, and return the run folder.

    Args:
        data: A folder of images, or anything else that `hirl.data.open_images` accepts.
        method: DINO, IBOT, MoCoV2, MoCoV3, SimSiam, SwAV, or a class of your own. By default MoCoV2. A class without
            arguments gets those that suit the images and the machine; they are printed.
        hierarchy: HIRL's settings; null for the baseline.
        out: Run folder; by default runs/DATA-METHOD-ARM-SEED. The same call continues an unfinished run in it.
        epochs: Number of passes over the images; by default chosen to suit them, or 100 with a method's own arguments.
        batch_size: Images per step, over all processes and accumulated parts; by default chosen, or 256.
        image_size: Side of a global view in pixels; by default chosen, or that of small images of equal size, else 224.
        seed: Seed of every random draw.
        split: Split of the data to train on; by default its training split.
        channels: 3 for colour, 1 for grey.
        mean: Mean to subtract per channel, for pixels in [0, 1]; by default ImageNet's.
        std: Standard deviation to divide by per channel; by default ImageNet's.
        strict: Fail on an unreadable image; by default another image takes its place and skipped.txt lists it.
        precision: Precision of the forward and backward pass.
        accelerator: Type of device; by default a GPU if there is one.
        devices: Number of devices on this machine; by default all GPUs, or one process on a CPU.
        nodes: Number of machines.
        compile: Apply torch.compile to the networks.
        accumulate: Number of parts to split a batch into if it does not fit into memory.
        workers: Processes that read images; by default none for small images in memory, else one per core, at most 8.
        knn_every: Epochs between KNN evaluations of labelled images, on the val split if there is one; 0 for never.
        checkpoint_minutes: Minutes between checkpoints within an epoch; there is always one at its end.
        keep_every: Epochs between checkpoints that are kept in the folder checkpoints; 0 for none.
        init_from: Run folder or encoder file whose weights the encoder starts from; they must match exactly.
        stage_one: Run folder of the baseline with the same settings and seed. HIRL starts from its state of epoch T₁,
            kept by `fork_at`, and ends in the same bits as if it had trained stage one itself.
        fork_at: Epochs after which a baseline keeps its state for HIRL runs to start from.
        wandb: Weights & Biases project to report to, in addition to metrics.jsonl and TensorBoard.
    """
    # Check the arguments and open the data
    wanted, hierarchy = resolve_method(method), resolve_hierarchy(hierarchy)
    numbers: dict[str, Any] = {"epochs": epochs, "seed": seed, "image_size": image_size, "keep_every": keep_every}
    check_arguments(batch_size=batch_size, accumulate=accumulate, **numbers)
    skipped = Skipped()
    found = open_images(data, split=split, channels=channels)
    images = in_memory(found, strict=strict, skipped=skipped)
    data_name = os.fspath(data) if isinstance(data, str | os.PathLike) else images.name
    run = Run(default_folder(data_name, wanted, hierarchy, seed) if out is None else out)

    # Resolve the settings; the run folder keeps those that decide the result
    wished: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "image_size": image_size}
    settings = settle(run, images, wanted, hierarchy, accelerator=accelerator, skipped=skipped, **wished)
    method, hierarchy, epochs = settings.method, settings.hierarchy, settings.epochs
    batch_size, size = settings.batch_size, settings.image_size
    check_arguments(batch_size=batch_size, accumulate=accumulate)
    check_ranges(method)
    check_fork(hierarchy, epochs=epochs, stage_one=stage_one, fork_at=fork_at)
    check_image_count(images, hierarchy, batch_size=batch_size, epochs=epochs)
    path = path_of(data)
    config = {
        "data": data_name if path is None else full_path(path),
        "method": method,
        "hierarchy": None if hierarchy is None else hierarchy.resolved(len(images), epochs),
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
    fabric = launch(accelerator=accelerator, devices=devices, nodes=nodes, precision=precision)
    source = OpenedImages(data, found, hashes=images.pixels is not None)
    with open_folder(fabric, run, to_plain(config), source) as state:
        if missing := lost_forks(run, state, fork_at):
            announce(fabric, run, f"warning: {missing}")
        if is_complete(run):
            announce(fabric, run, f"{run.folder} is finished: all {epochs} epochs are done")
            return run

        if settings.summary:
            announce(fabric, run, settings.summary)

        # Build the loaders, the networks and the heads
        reading: dict[str, Any] = {
            "rank": fabric.global_rank,
            "world_size": fabric.world_size,
            "device": fabric.device,
            "workers": workers,
            "strict": strict,
            "skipped": skipped,
            "mean": mean,
            "std": std,
        }
        loader = Loader(images, method.views(size), batch_size=batch_size // accumulate, seed=seed, **reading)
        evaluation_loader = EvaluationLoader(images, size=size, **reading)
        plan = Plan(epochs, len(loader) // accumulate, batch_size, size, channels)
        build_method(method, plan, seed=seed, init_from=init_from, compile_networks=compile)
        paths = build_paths(hierarchy, method.dim, len(images), seed=seed)

        # Continue from the last checkpoint, if there is one, or start from a baseline's stage one
        base = None if stage_one is None or state is not None else Run(stage_one)
        if base is not None:
            state = state_to_fork(base, to_plain(config), source)
        start = 0 if state is None else int(state["step"])
        if fabric.is_global_zero:
            run.forget_after(start, final_tree=state is not None and state.get("finished", False))
            run.add_resolved(resolved_settings(method, hierarchy, plan, len(images)))
        announce(fabric, run, plan_summary(run, images, method, hierarchy, plan, start))
        at_once: dict[str, Any] = {"workers": loader.workers, "accumulate": accumulate, "precision": precision}
        if (warning := memory_warning(fabric, method, plan, N=len(images), **at_once)) is not None:
            announce(fabric, run, f"warning: {warning}")

        # Train
        reporting: dict[str, Any] = {"start": start, "knn_every": knn_every, "wandb": wandb}
        reporting |= {"data": data, "split": split, "workers": workers}
        opened = open_observer(fabric, run, images, method, plan, loader.normalisation, **reporting)
        with stop_signals() as should_stop, opened as observer:
            loop = Loop(
                fabric=fabric,
                method=method,
                paths=paths,
                hierarchy=hierarchy,
                plan=plan,
                loader=loader,
                evaluation_loader=evaluation_loader,
                N=len(images),
                seed=seed,
                observer=observer,
                save_state=lambda state: _save(run, state, plan, keep_every, fork_at),
                save_tree=lambda tree: tree.save(run.tree_file),
                accumulate=accumulate,
                keep_bank=bool(fork_at),
                save_every=checkpoint_minutes * 60,
                should_stop=should_stop,
            )
            if state is not None:
                load_state(loop, state, run)
            if base is not None:
                loop.save()  # before the reports, which are those of a run that has a state to continue from
                if fabric.is_global_zero:
                    copy_reports(base, run, start)
                    announce(
                        fabric, run, f"stage one up to epoch {start // plan.steps_per_epoch} is that of {base.folder}"
                    )
            with memory_advice():
                _fit(loop, run, images, skipped)
            if fabric.is_global_zero:
                _finish(run, method, plan, loader.normalisation)
                announce(fabric, run, f"Done. Inspect with: hirl show {run.folder}")
        fabric.barrier()
    return run


def _fit(loop: Loop, run: Run, images: ImageSet, skipped: Skipped) -> None:
    """Train to the end. However training ends, the log says why and skipped.txt lists the unreadable images."""
    try:
        loop.fit()
    except NotFinite as error:
        if not loop.fabric.is_global_zero:
            raise SharedFailure from error
        message = failure_message(error, run, images, loop.plan)
        run.log(message)
        raise SharedFailure(message) from error
    except Stopped:
        announce(loop.fabric, run, f"stopped at step {loop.step} of {loop.plan.steps}; the same command continues")
        raise
    finally:
        if loop.fabric.is_global_zero and len(skipped):
            skipped.write(run.skipped_file)
            announce(loop.fabric, run, f"warning: {skipped.summary(images.name)}; all are listed in {run.skipped_file}")


def _save(run: Run, state: dict[str, Any], plan: Plan, keep_every: int, fork_at: Collection[int]) -> None:
    """Write last.ckpt, and checkpoints that stay: after every `keep_every` epochs and after those of `fork_at`.

    last.ckpt comes last: a run that is killed before it repeats the epoch and writes the others again.
    """
    epoch, rest = divmod(state["step"], plan.steps_per_epoch)
    kept = {"epoch": keep_every and epoch % keep_every == 0, "fork": epoch in fork_at and state["bank"]}
    for name, keep in kept.items():
        if keep and not rest:
            run.checkpoints_folder.mkdir(exist_ok=True)
            save_checkpoint(run.checkpoints_folder / f"{name}-{epoch:04d}.ckpt", state)
    save_checkpoint(run.checkpoint_file, state)
    if not run.saved:
        run.report({"step": state["step"], "epoch": state["step"] / plan.steps_per_epoch, "saved": True})


def _finish(run: Run, method: Method, plan: Plan, normalisation: Normalisation) -> None:
    """Save the encoder and mark the run as finished."""
    about = {"backbone": method.backbone, "backbone_args": method.encoder_args, "image_size": plan.image_size}
    run.save_encoder(method.encoder, about | dataclasses.asdict(normalisation))
    run.report({"step": plan.steps, "epoch": plan.epochs, "finished": True})
