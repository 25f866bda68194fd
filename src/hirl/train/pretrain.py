"""`hirl.pretrain`: one run from data to encoder, or the rest of a run that was stopped."""

from __future__ import annotations

import os
from typing import Any, Literal

from hirl.config import to_plain
from hirl.encoders.encoder_file import load_encoder
from hirl.encoders.last_blocks import Blocks
from hirl.freed_memory import keep_freed_memory
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method
from hirl.processes import PATIENCE, Precision, count_processes, launch
from hirl.run import Run
from hirl.runs.continuing import state_to_fork
from hirl.runs.stored import is_complete, write_encoder
from hirl.signals import Stopped, stop_signals
from hirl.train import checks, setup
from hirl.train.finite_losses import NotFinite
from hirl.train.fork import adopt_stage_one, missing_forks_message
from hirl.train.job import Job
from hirl.train.keeping import RunStore
from hirl.train.loop import Loop
from hirl.train.memory import memory_advice
from hirl.train.messages import failure_message, heads_summary, plan_summary
from hirl.train.report import open_observer
from hirl.train.resolve import resolve
from hirl.train.resume import SharedFailure, claim_folder, load_state
from hirl.train.settings import GivenSettings
from hirl.train.setup import Components
from hirl.train.start import check_same_start, open_start, write_start
from hirl.train.start_and_adapted import compare_start
from hirl.train.training_images import open_training_images


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
    encoder: str | None = "auto",
    cached_views: int = 6,
    neighbours: float | None = None,
    unfreeze: Blocks = 0,
    stage_one: str | os.PathLike[str] | None = None,
    fork_at: tuple[int, ...] = (),
    wandb: str | None = None,
) -> Run:
    """Train `method` on `data`, with HIRL on top unless `hierarchy` is None, and return the run folder.

    Args:
        data: A folder of images, or anything else that `hirl.data.open_images` accepts.
        method: A method of hirl, such as DINO, or a class of your own. By default MoCoV2. A class without arguments
            gets arguments chosen for the images and machine, which are printed.
        hierarchy: HIRL's settings; null for the baseline.
        out: Run folder; by default runs/DATA-METHOD-ARM-SEED. The same call continues an unfinished run in it.
        epochs: Number of passes over the images; by default chosen to suit them, or 100 with a method's own arguments.
        batch_size: Images per step, over all processes and accumulated parts; by default chosen, or 256 with a method's
            own arguments.
        image_size: Side of a global view in pixels; by default chosen, or if the method has its own arguments: the
            size of small equal-sized images, else 224.
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
        encoder: The encoder to start from: a run folder, an encoder file or a name; null for random weights. A method
            with its own arguments trains all of it, and the weights must match its backbone. Without such arguments,
            the encoder stays frozen, and an adapter on its features is trained. "auto" is the embedded encoder if the
            images are in colour and the method, given without arguments, has a recipe in adapt/, else null. From a
            checkpoint of the named method's own authors (MoCoV2, DINO) the heads are loaded too, and all of it trains.
        cached_views: With a frozen encoder, the number of views per image whose features are computed once; epochs draw
            from them.
        neighbours: With a frozen encoder, the share of images that are paired with a view of one of their nearest
            images instead of another view of their own; with a hierarchy, one of the same node of the tree. By default
            0.5 with a frozen encoder and a hierarchy without heads, else 0.
        unfreeze: The number of the encoder's last blocks that train, or all; by default none. Heads train alone for the
            first tenth of the epochs, then the blocks too, at small rates that decrease from the last block backwards.
            The rest of the encoder stays frozen, and so do the statistics of all its batch norms.
        stage_one: Run folder of the baseline with the same settings and seed. HIRL starts from its state of epoch T₁,
            kept by `fork_at`, and ends in the same bits as if it had trained stage one itself.
        fork_at: Epochs after which a baseline keeps its state for HIRL runs to start from.
        wandb: Weights & Biases project to report to, in addition to metrics.jsonl and TensorBoard.
    """
    given = GivenSettings(
        data=data,
        method=checks.find_method(method),
        hierarchy=checks.as_hierarchy(hierarchy),
        epochs=epochs,
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
        split=split,
        channels=channels,
        mean=mean,
        std=std,
        precision=precision,
        accumulate=accumulate,
        encoder=encoder,
        cached_views=cached_views,
        neighbours=neighbours,
        unfreeze=unfreeze,
    )
    checks.check_numbers(epochs=epochs, batch_size=batch_size, image_size=image_size, seed=seed, accumulate=accumulate)
    checks.check_numbers(nodes=nodes, devices=None if devices == "auto" else devices, workers=workers)
    checks.check_numbers(knn_every=knn_every, keep_every=keep_every, checkpoint_minutes=checkpoint_minutes)
    checks.check_out(out)
    checks.check_choices(precision=precision, accelerator=accelerator)
    keep_freed_memory()
    opened = open_training_images(given, workers=workers, strict=strict)
    run = Run(checks.default_run_folder(opened.name, given) if out is None else out)
    # Heads are loaded only if the method was named: the default method adapts the encoder of any file.
    start = open_start(given, run, heads=method is not None)
    processes = count_processes(accelerator, devices=devices, nodes=nodes)
    settings, summary = resolve(given, opened, start, run, accelerator, processes)
    checks.check_settings(settings, opened.images, processes=processes, stage_one=stage_one, fork_at=fork_at)
    patience = {"timeout": PATIENCE} if settings.method.has_adapter else {}  # the first one computes its features
    fabric = launch(accelerator, devices=devices, nodes=nodes, precision=precision, **patience)
    job = Job(fabric, run, settings, opened, start)

    with claim_folder(job) as state:
        if missing := missing_forks_message(run, state, fork_at):
            job.announce(f"warning: {missing}")
        if is_complete(run):
            if start is not None and settings.method.has_adapter and job.is_first:  # it may be missing or damaged
                write_start(run, start, settings.image_size, load_encoder(run.encoder_file)[0])
            job.announce(f"{run.folder} is finished: all {settings.epochs} epochs are done")
            return run
        if summary:
            job.announce(summary)
        _announce_start(job)
        components = setup.build(fabric, settings, opened, start, compile_networks=compile, announce=job.announce)
        base = None if stage_one is None or state is not None else Run(stage_one)
        state = state if base is None else state_to_fork(base, to_plain(settings), opened.opened)
        first = 0 if state is None else int(state["step"])
        _begin(job, components, first, final_tree=state is not None and state["finished"])
        _report_unreadable(job)  # those that are known by now

        store = RunStore(
            run, components.plan, checkpoint_minutes=checkpoint_minutes, keep_every=keep_every, fork_at=fork_at
        )
        observed = open_observer(job, components, first, knn_every=knn_every, wandb=wandb)
        with observed as observer, stop_signals() as should_stop:
            loop = Loop(fabric, components, observer, store, should_stop=should_stop)
            if state is not None:
                load_state(job, loop, state)
            _keep_start(job)
            if base is not None:
                assert state is not None
                loop.save()  # before the reports: a folder with reports must have a state to continue from
                adopt_stage_one(job, base, state)
            with memory_advice():
                _fit(job, loop)
            if job.is_first:
                _finish(job, components)
        fabric.barrier()
    return run


def _announce_start(job: Job) -> None:
    """Announce where the initial weights come from, and store them if they are to be trained."""
    start, run, settings = job.start, job.run, job.settings
    if start is None:
        return
    name, about = start.encoder.name, str(start.provenance)
    job.announce(f"starts from {about if about.startswith(name) else f'{name}: {about}'}")
    if start.heads is not None:
        job.announce(heads_summary(start.heads, settings))
    if job.is_first:
        run.record_origin(start.provenance)
        if settings.unfreeze:
            write_start(run, start, settings.image_size)


def _keep_start(job: Job) -> None:
    """Check that the adapter, possibly from a checkpoint, belongs to this start, and write start.safetensors."""
    if job.start is None or not job.settings.method.has_adapter:
        return
    weights = job.settings.method.encoder.state_dict()
    check_same_start(job.run, job.start, weights)
    if job.is_first:
        write_start(job.run, job.start, job.settings.image_size)


def _begin(job: Job, components: Components, first: int, *, final_tree: bool) -> None:
    """Prepare the folder for a run at step `first` and announce the plan; raise if it does not fit into memory."""
    plan, hierarchy = components.plan, components.hierarchy
    if job.is_first:
        job.run.drop_reports_after(first, final_tree=final_tree)
        resolved: dict[str, Any] = {"peak_lr": components.method.peak_lr}
        resolved |= {"image_size": plan.image_size, "steps_per_epoch": plan.steps_per_epoch}
        if hierarchy is not None:
            resolved |= {"levels": list(hierarchy.levels), "start_epoch": hierarchy.start_epoch}
        job.run.record_resolved(resolved)
    job.announce(plan_summary(job, plan, first))
    if (warning := setup.memory_warning(job.fabric, job.settings, components)) is not None:
        job.announce(f"warning: {warning}")


def _fit(job: Job, loop: Loop) -> None:
    """Train to the end. However training ends, the log says why and skipped.txt lists the unreadable images."""
    run, known = job.run, len(job.data.skipped)
    try:
        loop.fit()
    except NotFinite as error:
        if not job.is_first:
            raise SharedFailure from error
        message = failure_message(error, job, loop.plan)
        run.log(message)
        raise SharedFailure(message) from error
    except Stopped:
        job.announce(f"stopped at step {loop.step} of {loop.plan.steps}; the same command continues")
        job.fabric.barrier()  # a launcher that sees another process end may kill the first one
        raise
    finally:
        if len(job.data.skipped) > known:
            _report_unreadable(job)


def _report_unreadable(job: Job) -> None:
    """List the images in skipped.txt that could not be read so far, and say so."""
    skipped, file = job.data.skipped, job.run.skipped_file
    if job.is_first and len(skipped):
        skipped.write(file)
        job.announce(f"warning: {skipped.summary(job.data.images.name, len(job.data))}; all are listed in {file}")


def _finish(job: Job, components: Components) -> None:
    """Write the encoder, compare it with the start, and report the end."""
    run = job.run
    write_encoder(run, components.method, components.loader.normalisation)
    if job.start is not None and (components.method.has_adapter or job.settings.unfreeze):
        job.announce(compare_start(job, job.start, components))
    run.report({"step": components.plan.steps, "epoch": components.plan.epochs, "finished": True})
    job.announce(f"Done. Inspect with: hirl show {run.folder}")
