"""`hirl.pretrain`: one run from data to encoder, or the rest of a run that was stopped."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Literal

from hirl.config import to_plain
from hirl.data.sources import Skipped, open_images
from hirl.data.sources.image_list import full_path, path_of
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.images_in_memory import in_memory
from hirl.encoders.encoder_file import load_encoder
from hirl.encoders.last_blocks import Blocks
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method, Plan
from hirl.processes import Precision, launch
from hirl.run import Run
from hirl.runs.checkpoint import save_checkpoint
from hirl.runs.continuing import state_to_fork
from hirl.runs.images_file import OpenedImages
from hirl.runs.stored import is_complete, write_encoder
from hirl.signals import Stopped, stop_signals
from hirl.train import checks, setup
from hirl.train.feature_loader import FeatureLoader
from hirl.train.finite_losses import NotFinite
from hirl.train.fork import copy_reports, lost_forks
from hirl.train.loop import Loop
from hirl.train.memory import memory_advice
from hirl.train.messages import announce, failure_message, plan_summary, resolved_settings
from hirl.train.settings import Settings, default_neighbours, resolve
from hirl.train.start import (
    check_same_start,
    compare_start,
    find_start,
    heads_summary,
    open_heads,
    open_start,
    start_provenance,
    write_start,
)


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
            gets those that suit the images and the machine; they are printed.
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
        encoder: The encoder to start from: a run folder, an encoder file or a name; null for random weights. A method
            with its own arguments trains all of it, and the weights must match its backbone. Without such arguments,
            the encoder stays frozen, and an adapter on its features is trained. "auto" is the embedded encoder for
            colour images if the arguments are chosen of a method with a recipe in adapt/, else null. From a
            checkpoint of the named method's own authors (MoCoV2, DINO) its heads come along, and all of it trains.
        cached_views: With a frozen encoder, the views of each image whose features are computed once; epochs draw from
            them.
        neighbours: With a frozen encoder, the share of images that are paired with a view of one of their nearest
            images instead of another view of their own; with a hierarchy, one of the same node of the tree. By default
            0.5 with a frozen encoder and a hierarchy without heads, else 0.
        unfreeze: The number of the encoder's last blocks that train, or all; by default none. Heads train alone for the
            first tenth of the epochs, then blocks at small rates, the smaller the further from the end. The rest of the
            encoder stays frozen, and so do the statistics of all its batch norms.
        stage_one: Run folder of the baseline with the same settings and seed. HIRL starts from its state of epoch T₁,
            kept by `fork_at`, and ends in the same bits as if it had trained stage one itself.
        fork_at: Epochs after which a baseline keeps its state for HIRL runs to start from.
        wandb: Weights & Biases project to report to, in addition to metrics.jsonl and TensorBoard.
    """
    # What is asked for, and the images
    wanted, hierarchy = checks.find_method(method), checks.as_hierarchy(hierarchy)
    checks.check_numbers(epochs=epochs, batch_size=batch_size, image_size=image_size, seed=seed, accumulate=accumulate)
    checks.check_numbers(nodes=nodes, devices=None if devices == "auto" else devices, workers=workers)
    checks.check_numbers(knn_every=knn_every, keep_every=keep_every, checkpoint_minutes=checkpoint_minutes)
    checks.check_choices(precision=precision, accelerator=accelerator)
    skipped = Skipped()
    found = open_images(data, split=split, channels=channels)
    images = in_memory(found, strict=strict, skipped=skipped)
    source = OpenedImages(data, found, hashes=images.pixels is not None)
    path = path_of(data)
    data_name = os.fspath(data) if isinstance(data, str | os.PathLike) else images.name
    run = Run(checks.default_run_folder(data_name, wanted, hierarchy, seed) if out is None else out)

    # The encoder to start from, and the settings, resolved once; config.yaml keeps them
    encoder = find_start(encoder, wanted, channels, run)
    start = None if encoder is None else open_start(encoder, wanted, channels)
    # A method that is only the default adapts the encoder of any file: heads are for whoever names the method.
    heads = None if encoder is None or method is None else open_heads(encoder, wanted)
    if start is not None:
        mean, std = mean or start.mean, std or start.std
    chosen, resolved, summary = resolve(
        run,
        images,
        wanted,
        hierarchy,
        start,
        heads,
        epochs=epochs,
        batch_size=batch_size,
        image_size=image_size,
        unfreeze=unfreeze,
        accelerator=accelerator,
        skipped=skipped,
    )
    settings = Settings(
        data=data_name if path is None else full_path(path),
        method=chosen.method,
        hierarchy=resolved,
        epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        image_size=chosen.image_size,
        seed=seed,
        split=split,
        channels=channels,
        mean=mean,
        std=std,
        precision=precision,
        accumulate=accumulate,
        encoder=encoder,
        cached_views=cached_views,
        neighbours=default_neighbours(chosen.method, resolved) if neighbours is None else neighbours,
        unfreeze=unfreeze,
    )
    checks.check_settings(settings, images, stage_one=stage_one, fork_at=fork_at)

    fabric = launch(accelerator, devices=devices, nodes=nodes, precision=precision)
    with setup.claim_folder(fabric, run, to_plain(settings), source) as state:
        if missing := lost_forks(run, state, fork_at):
            announce(fabric, run, f"warning: {missing}")
        if is_complete(run):
            if start is not None and run.is_adapted and fabric.is_global_zero:
                write_start(run, start, chosen.image_size, load_encoder(run.encoder_file)[0])
            announce(fabric, run, f"{run.folder} is finished: all {settings.epochs} epochs are done")
            return run
        if summary:
            announce(fabric, run, summary)
        if start is not None:
            origin = start_provenance(start, heads)
            announce(fabric, run, f"starts from {start.name}: {origin}")
            if heads is not None:
                announce(fabric, run, heads_summary(heads, settings))
            if fabric.is_global_zero:
                run.add_start(origin)
            if unfreeze and fabric.is_global_zero:
                write_start(run, start, chosen.image_size)
        parts = setup.build(
            fabric,
            settings,
            images,
            start=start,
            heads=heads,
            workers=workers,
            strict=strict,
            skipped=skipped,
            compile_networks=compile,
        )

        # Continue from the last checkpoint, if there is one, or start from a baseline's stage one
        base = None if stage_one is None or state is not None else Run(stage_one)
        if base is not None:
            state = state_to_fork(base, to_plain(settings), source)
        first = 0 if state is None else int(state["step"])
        if fabric.is_global_zero:
            run.forget_after(first, final_tree=state is not None and state["finished"])
            run.add_resolved(resolved_settings(settings, parts.plan))
        announce(fabric, run, plan_summary(run, images, settings, parts.plan, first))
        if (warning := setup.memory_warning(fabric, settings, parts, N=len(images))) is not None:
            announce(fabric, run, f"warning: {warning}")

        # Train
        observed = setup.open_observer(
            fabric,
            run,
            images,
            settings,
            parts,
            first,
            encoder=start,
            data=data,
            knn_every=knn_every,
            workers=workers,
            wandb=wandb,
        )
        with observed as observer, stop_signals() as should_stop:
            loop = Loop(
                fabric=fabric,
                method=settings.method,
                paths=parts.paths,
                hierarchy=settings.hierarchy,
                plan=parts.plan,
                loader=parts.loader,
                evaluation_loader=parts.evaluation_loader,
                N=len(images),
                seed=seed,
                observer=observer,
                save_state=lambda state: _save(run, state, parts.plan, keep_every, fork_at),
                save_tree=lambda tree: tree.save(run.tree_file),
                accumulate=accumulate,
                keep_bank=bool(fork_at),
                save_every=checkpoint_minutes * 60,
                should_stop=should_stop,
                unfreezing=parts.unfreezing,
            )
            if state is not None:
                setup.load_state(loop, state, run)
            if start is not None and run.is_adapted:
                weights = settings.method.encoder.state_dict()
                check_same_start(run, start, weights)
                if fabric.is_global_zero:
                    write_start(run, start, chosen.image_size, weights)
            if base is not None:
                loop.save()  # before the reports, which are those of a run that has a state to continue from
                if fabric.is_global_zero:
                    copy_reports(base, run, first)
                epoch = first // parts.plan.steps_per_epoch
                announce(fabric, run, f"stage one up to epoch {epoch} is that of {base.folder}")
            with memory_advice():
                _fit(loop, run, images, skipped)
            if fabric.is_global_zero:
                write_encoder(run, settings.method, parts.loader.normalisation)
                if start is not None and (chosen.method.is_adapted or unfreeze):
                    cached = parts.loader.cached if isinstance(parts.loader, FeatureLoader) else None
                    reading = {"mean": mean, "std": std, "device": fabric.device, "workers": workers, "strict": strict}
                    announce(fabric, run, compare_start(run, settings, cached, images, start, **reading))
                run.report({"step": parts.plan.steps, "epoch": parts.plan.epochs, "finished": True})
                announce(fabric, run, f"Done. Inspect with: hirl show {run.folder}")
        fabric.barrier()
    return run


def _fit(loop: Loop, run: Run, images: ImageSet, skipped: Skipped) -> None:
    """Train to the end. However training ends, the log says why and skipped.txt lists the unreadable images."""
    try:
        loop.fit()
    except NotFinite as error:
        if not loop.fabric.is_global_zero:
            raise setup.SharedFailure from error
        message = failure_message(error, run, images, loop.plan)
        run.log(message)
        raise setup.SharedFailure(message) from error
    except Stopped:
        announce(loop.fabric, run, f"stopped at step {loop.step} of {loop.plan.steps}; the same command continues")
        loop.fabric.barrier()  # whoever sees another process end may stop the first one
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
