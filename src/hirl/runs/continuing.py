"""Checks before a run is continued or forked. Nothing is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hirl.data.sources.image_list import ImageList, full_path
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import RunFolder
from hirl.runs.images_file import OpenedImages, changed_images, other_count, readable_list
from hirl.runs.representations import TREE
from hirl.runs.stored import is_complete

CONTINUE = "name another folder, or give the settings in its config.yaml to continue it"
ELSEWHERE = "name another folder with --out, or delete this one to start again"


def state_to_continue(run: RunFolder, config: dict[str, Any], opened: OpenedImages) -> dict[str, Any] | None:
    """The last checkpoint of the run in the folder; None for a new run, and for one that is complete.

    A run that was stopped before its first checkpoint starts again. The folder must be locked.
    """
    has_checkpoint = run.checkpoint_file.is_file()
    if not run.exists or not (has_checkpoint or run.saved):
        return None
    known = readable_list(run)
    _check_configuration(run, config, known)
    changed = changed_images(known, opened)
    if changed is not None:
        raise ValueError(
            f"the images in {config['data']!r} are not those that {str(run.folder)!r} was trained on ({changed}): "
            "restore them, or name another folder with --out"
        )
    if is_complete(run):
        return None
    if not has_checkpoint:
        raise ValueError(
            f"{str(run.folder)!r} has been trained, but its last.ckpt is missing, so it cannot continue: "
            f"{_checkpoint_hint(run)}{ELSEWHERE}"
        )
    try:
        state = load_checkpoint(run.checkpoint_file)
    except ValueError as error:
        raise ValueError(f"{error}; {_checkpoint_hint(run)}{ELSEWHERE}") from error
    # Without images.tsv, compare the number of images with the tree's leaves.
    tree = state.get("joint", {}).get(TREE)
    if tree and (other := other_count(run, len(tree["leaves"]), opened.images.name, len(opened.images))):
        raise ValueError(f"{other}: restore them, or name another folder with --out")
    return state


def state_to_fork(base: RunFolder, config: dict[str, Any], opened: OpenedImages) -> dict[str, Any]:
    """The baseline's latest state up to epoch T₁, from which a HIRL run of this configuration starts."""
    if config["hierarchy"] is None or base.config["hierarchy"] is not None:
        raise ValueError(f"stage_one {str(base.folder)!r}: a run with a hierarchy starts from a baseline's stage one")
    known = readable_list(base)
    same = "it must be that of this run but for the hierarchy"
    _check_configuration(base, config | {"hierarchy": None}, known, same)
    if (changed := changed_images(known, opened)) is not None:
        raise ValueError(f"stage_one {str(base.folder)!r} was trained on other images ({changed})")
    start = config["hierarchy"]["start_epoch"]
    file = fork_file(base, start)
    if file is None:
        raise ValueError(
            f"stage_one {str(base.folder)!r} has kept no state of epoch {start} or before to start from: train it "
            f"with --fork_at {start}, or leave stage_one out"
        )
    return load_checkpoint(file)


def fork_file(base: RunFolder, start: int) -> Path | None:
    """The latest state up to epoch `start` that a baseline trained with `fork_at` has kept; None if there is none."""
    kept = {int(file.stem.removeprefix("fork-")): file for file in base.checkpoints_folder.glob("fork-*.ckpt")}
    early = [epoch for epoch in kept if epoch <= start]
    return kept[max(early)] if early else None


def _check_configuration(
    run: RunFolder, config: dict[str, Any], known: ImageList | None, remedy: str = CONTINUE
) -> None:
    old, new = dict(run.config), dict(config)
    if known is not None or _same_place(old["data"], new["data"]):  # images.tsv identifies images anywhere
        old["data"] = new["data"]
    changed = differences(old, new)
    if changed:
        raise ValueError(f"{str(run.folder)!r} holds a run of another configuration ({'; '.join(changed)}): {remedy}")


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Where two configurations differ, each as `name: old → new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [
            line
            for key in keys
            for line in differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return [] if list(old) == list(new) else [f"{name}: {list(old)} → {list(new)}"]
    return [] if old == new else [f"{name}: {old} → {new}"]


def _same_place(old: Any, new: Any) -> bool:
    return all(isinstance(one, str) for one in (old, new)) and full_path(old) == full_path(new)


def _checkpoint_hint(run: RunFolder) -> str:
    """How to continue without last.ckpt: from the newest checkpoint in checkpoints/, if there is one."""
    kept: list[Path] = sorted(run.checkpoints_folder.glob("epoch-*.ckpt"))
    return f"copy {str(kept[-1])!r} there to continue from it, " if kept else "restore it, "
