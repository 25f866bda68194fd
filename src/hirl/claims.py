"""Work shared by any number of processes and machines through a folder: each takes the next task that nobody holds.

A claim is a file that its holder touches while it works. It counts as left behind if it has not been touched for a
minute, or at once if its process on this machine has ended. If two processes ever hold one task, which a pause of over
a minute can cause, both do it: results are written atomically and are the same, so that only time is lost.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hirl.files import missing_folders, remove_empty

BEAT = 10.0  # seconds between touches
DEAD = 60.0  # seconds after the last one
POLL = 2.0  # seconds between looks at tasks that others hold


def share_tasks(tasks: Sequence[str], folder: Path, is_done: Callable[[str], bool]) -> Iterator[str]:
    """Yield tasks to do, each held until the next is asked for; end when all are done, by this process or others.

    Args:
        tasks: Names, which name the claims as well.
        folder: Where claims are, as hidden files; made if it is missing.
        is_done: Whether a task's result is there.
    """
    made = missing_folders(folder)
    folder.mkdir(parents=True, exist_ok=True)
    left, mine = list(tasks), set()
    try:
        while left := [task for task in left if not (task in mine or is_done(task))]:
            taken = False
            for task in left:
                with claim(folder / f".{task}.claim") as held:
                    if held and not is_done(task):
                        taken = True
                        mine.add(task)  # once: a caller that leaves no result would get it again for ever
                        yield task
            if not taken:
                time.sleep(POLL)
    finally:
        remove_empty(made)  # of a caller whose first task was refused


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Hold the claim at `path`; yields False if another process holds it."""
    token = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "id": uuid.uuid4().hex})
    if not (_create(path, token) or (_remove_dead(path) and _create(path, token))):
        yield False
        return
    ended = threading.Event()
    beat = threading.Thread(target=_touch, args=(path, token, ended), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        ended.set()
        beat.join()
        if _read(path) == token:
            path.unlink(missing_ok=True)


def _create(path: Path, token: str) -> bool:
    """Make the claim with its content, at once or not at all."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    aside.write_text(token)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    return True


def _read(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text()
    return None


def _remove_dead(path: Path) -> bool:
    """Remove a claim that was left behind; False if it is alive."""
    token = _read(path)
    if token is not None and not _is_dead(path, token):
        return False
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.rename(aside)
    except FileNotFoundError:  # another process was faster
        return True
    if _read(aside) != token:  # and has claimed the task since: give it back
        with suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink()
    return True


def _is_dead(path: Path, token: str) -> bool:
    with suppress(ValueError, KeyError, TypeError):
        holder = json.loads(token)
        if holder["host"] == socket.gethostname():
            try:
                os.kill(int(holder["pid"]), 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass
    # The folder's own clock: those of two machines may differ.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now.") as now, suppress(FileNotFoundError):
        return Path(now.name).stat().st_mtime - path.stat().st_mtime > DEAD
    return False


def _touch(path: Path, token: str, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        if _read(path) != token:  # given up for dead
            return
        with suppress(OSError):
            os.utime(path)
