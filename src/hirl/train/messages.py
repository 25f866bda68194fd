"""Messages of a run to its user: what it is about to do, and why it had to stop."""

from __future__ import annotations

from torch import nn

from hirl.data.sources.escape import one_line
from hirl.encoders.backbones import width
from hirl.files import atomic_write
from hirl.methods.base import Plan
from hirl.methods.foreign_state import ForeignState
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import FAILURE
from hirl.train.finite_losses import NotFinite
from hirl.train.job import Job
from hirl.train.settings import Settings

MANY_LEFT_OUT = 0.1  # share of the images


def heads_summary(heads: ForeignState, settings: Settings) -> str:
    """Describe the heads that are loaded from the encoder's file, and their effect on the first tree."""
    kept = getattr(settings.method, "queue_length", None)
    shorter = kept is not None and "queue" in heads.weights and kept < len(heads.weights["queue"])
    text = f"heads are loaded too: {heads.description}{f', of which the newest {kept:,} are kept' if shorter else ''}"
    if settings.hierarchy is None or settings.hierarchy.start_epoch:
        return text
    return f"{text}; z0 is trained already, so the first tree is built before the first epoch"


def plan_summary(job: Job, plan: Plan, start: int) -> str:
    """Describe a run that starts, or continues at step `start`."""
    images, method, hierarchy = job.data.images, job.settings.method, job.settings.hierarchy
    lines = [
        f"{job.run.folder}: {type(method).__name__} on {len(images):,} images of {images.name}",
        f"{plan.epochs} epochs of {plan.steps_per_epoch} steps; per step {plan.batch_size} images of "
        f"{plan.image_size} pixels",
        f"encoder {method.backbone}: {_size(method.encoder)}",
        f"learning rate {method.peak_lr:.3g} for this batch size",
    ]
    left_out = len(images) - plan.steps_per_epoch * plan.batch_size
    if left_out > MANY_LEFT_OUT * len(images):
        lines.append(
            f"each epoch leaves out {left_out:,} images, different ones each time; a smaller batch size would use more"
        )
    if hierarchy is None:
        lines.append("baseline: no hierarchy")
    else:
        sizes = ", ".join(f"{size:,}" for size in hierarchy.levels)
        first = f"after epoch {hierarchy.start_epoch}" if hierarchy.start_epoch else "before the first epoch"
        lines.append(f"hierarchy of {sizes} prototypes; the first tree is built {first}")
    if start:
        lines.append(f"continues at step {start} of {plan.steps}")
    return "\n".join(lines)


def _size(encoder: nn.Module) -> str:
    """Number of parameters and, if the encoder has it, of features: `23.5 M parameters, 2,048 features`."""
    count = sum(weight.numel() for weight in encoder.parameters())
    parameters = f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"
    features = f", {width(encoder):,} features" if hasattr(encoder, "num_features") else ""
    return f"{parameters} parameters{features}"


def failure_message(error: NotFinite, job: Job, plan: Plan) -> str:
    """Write the batch whose loss is not finite to failed_batch.txt, and return a message with the remedy."""
    run, images = job.run, job.data.images
    listed = run.folder / "failed_batch.txt"
    with atomic_write(listed) as aside:
        lines = (f"{index}\t{one_line(images.path(index))}\n" for index in error.index.tolist())
        aside.write_text("".join(lines), encoding="utf-8")
    good = load_checkpoint(run.checkpoint_file)["step"] if run.checkpoint_file.exists() else None
    kept = f"the last good checkpoint is from step {good}" if good is not None else "there is no checkpoint yet"
    epoch = error.step // plan.steps_per_epoch + 1
    precise = "" if job.settings.precision == "32-true" else " or use precision 32-true"
    return (
        f"{FAILURE}{error.loss} at step {error.step} (epoch {epoch}): lower the learning rate{precise}; the images of "
        f"the batch are listed in {str(listed)!r}, and {kept}"
    )
