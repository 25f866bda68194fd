"""`hirl` commands in several processes, one of which can be killed; the jobs of test_lost_process.py."""

from __future__ import annotations

import importlib
import os
import sys

from hirl.cli.main import main
from hirl.hierarchy.lloyd import Lloyd
from hirl.train import loop

from ..jobs import kill_before, serve
from .killed_run import LOADED_LATE


def work(*, line: list[str], where: str, at: int, rank: int) -> None:
    """Run a command; the process of that rank is killed before its `at`-th step of training or of K-means."""
    loop.SYNC_EVERY = 1  # or checkpoints would be saved at the end of epochs alone
    if where != "never" and rank == int(os.environ["RANK"]):
        kill_before(*{"epoch": (loop.Loop, "_step"), "kmeans": (Lloyd, "_means")}[where], at)
    code = main(line)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in (*LOADED_LATE, "hirl.train.pretrain"):
        importlib.import_module(name)
    serve(work)
