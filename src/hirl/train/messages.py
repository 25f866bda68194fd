"""What a run says in sentences: what it is about to do, and why it could not go on."""

from __future__ import annotations

from hirl.data.sources.escape import one_line
from hirl.data.sources.image_set import ImageSet
from hirl.files import atomic_write
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method, Plan
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import Run
from hirl.train.loop import NotFinite

MANY = 0.1  # of the images


def plan_summary(
    run: Run, images: ImageSet, method: Method, hierarchy: Hierarchy | None, plan: Plan, start: int
) -> str:
    lines = [
        f"{run.folder}: {type(method).__name__} on {len(images):,} images of {images.name}",
        f"{plan.epochs} epochs of {plan.steps_per_epoch} steps of {plan.batch_size} images of {plan.image_size} pixels",
        f"learning rate {method.peak_lr:.3g} for this batch size",
    ]
    left_out = len(images) - plan.steps_per_epoch * plan.batch_size
    if left_out > MANY * len(images):
        lines.append(
            f"each epoch leaves out {left_out:,} images, others every time: a smaller batch would take in more"
        )
    if hierarchy is None:
        lines.append("no hierarchy: the baseline")
    else:
        levels = hierarchy.levels_for(len(images))
        lines.append(f"hierarchy of {levels} prototypes from epoch {hierarchy.start_for(plan.epochs) + 1} on")
    if start:
        lines.append(f"continues at step {start} of {plan.steps}")
    return "\n".join(lines)


def failure_message(error: NotFinite, run: Run, images: ImageSet, plan: Plan) -> str:
    """Writes down the batch that gave no finite loss, and says where the run stands."""
    listed = run.folder / "failed_batch.txt"
    with atomic_write(listed) as aside:
        lines = (f"{index}\t{one_line(images.path(index))}\n" for index in error.index.tolist())
        aside.write_text("".join(lines), encoding="utf-8")
    good = load_checkpoint(run.checkpoint_file)["step"] if run.checkpoint_file.exists() else None
    kept = f"the last good checkpoint is that of step {good}" if good is not None else "there is no checkpoint yet"
    epoch = error.step // plan.steps_per_epoch + 1
    return (
        f"the loss is {error.loss} at step {error.step} (epoch {epoch}); its images are listed in {str(listed)!r}, and "
        f"{kept}: lower the learning rate or take precision 32-true"
    )
