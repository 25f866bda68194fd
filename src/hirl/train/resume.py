"""Locks a run's folder and finds where training begins: at the first step, or at a stored state."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hirl.config import to_plain
from hirl.files import missing_folders, remove_empty
from hirl.hierarchy.tree import is_tree
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.continuing import state_to_continue
from hirl.runs.folder import LOCK
from hirl.runs.images_file import repair_images, write_images
from hirl.runs.stored import is_complete
from hirl.train.job import Job
from hirl.train.loop import Loop

MISTAKE = 2  # exit code of a command that ends with a ValueError or OSError


class SharedFailure(ValueError):  # noqa: N818
    """A failure that all processes raise at the same point; only the first process has the message."""


@contextmanager
def claim_folder(job: Job) -> Iterator[dict[str, Any] | None]:
    """Lock the run folder on the first process, and yield the state to continue from; None if there is none.

    The configuration and the list of images of a new run are written to it; those of a continued run must be the same.
    If the folder cannot be used, or all processes fail with `SharedFailure`, the first one reports why and the others
    exit silently. A new run that fails before its first report leaves no files behind.
    """
    fabric, run = job.fabric, job.run
    if not job.is_first:
        code = fabric.broadcast(0, src=0)
        if code:
            raise SystemExit(code)
        try:
            yield (
                load_checkpoint(run.checkpoint_file) if run.checkpoint_file.exists() and not is_complete(run) else None
            )
        except SharedFailure as error:
            fabric.barrier()  # a launcher may kill the first process, still writing, when this one ends
            raise SystemExit(MISTAKE) from error
        return
    made = missing_folders(run.folder)
    with ExitStack() as held:
        try:
            held.enter_context(run.locked())
            held.enter_context(_removed_if_refused(run, made))
            config, opened = to_plain(job.settings), job.data.opened
            state = state_to_continue(run, config, opened)
            run.begin(config)
            if state is None and not run.finished:
                write_images(run, opened)
            elif (repaired := repair_images(run, opened)) is not None:
                job.announce(repaired)
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
    """If a new run fails before its first report, empty its folder and remove the folders created for it.

    The folder must be locked. `made`: the created folders, from the run's own upwards.
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


def load_state(job: Job, loop: Loop, state: dict[str, Any]) -> None:
    """Restore the state of a checkpoint, and write the tree in it to its file if that is missing or damaged."""
    try:
        loop.load_state_dict(state)
    except (KeyError, RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{str(job.run.checkpoint_file)!r} does not fit this run: {reason}") from error
    tree = None if loop.paths is None else loop.paths.tree
    if tree is not None:
        loop.observer.on_tree_restored(tree)
    if tree is not None and job.is_first and not is_tree(job.run.tree_file):
        job.announce(f"{job.run.tree_file} is missing or damaged: it has been written again from last.ckpt")
        loop.store.save_tree(tree)
