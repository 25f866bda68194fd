"""Jobs in processes of their own, any of which can be killed, or asked to stop, at a given point.

A module that calls `serve` when it is run reads jobs from stdin, one line of JSON per job. For each it forks as many
processes as asked for, which saves them the time for imports, and prints how they ended. `Jobs` runs such a module.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hirl.runs import checkpoint
from hirl.signals import Stopped

from .forked import as_torchrun

STOPPED = 130


class Jobs:
    """Hands jobs to a module of the tests, which runs in a process of its own: Jobs("train.killed_run")."""

    def __init__(self, module: str) -> None:
        self.script = subprocess.Popen(
            [sys.executable, "-m", f"tests.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[1],
        )

    def __call__(self, *, processes: int = 1, nodes: int = 1, stop: bool = True, **job: Any) -> tuple[int, str]:
        """Run the job; return the first exit code other than 0, negative for a signal, and the output of all.

        `nodes`: the machines that the processes take themselves to be on; `stop`: whether one that fails ends all.
        """
        assert self.script.stdin is not None
        assert self.script.stdout is not None
        started = {"processes": processes, "nodes": nodes, "stop": stop}
        self.script.stdin.write(json.dumps(started | {"job": job}) + "\n")
        self.script.stdin.flush()
        code, output = json.loads(self.script.stdout.readline())
        return code, output

    def close(self) -> None:
        self.script.communicate(timeout=60)


def serve(work: Callable[..., None]) -> None:
    """Call work(**job) in the processes of each job; they find their rank where torchrun would put it."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(_in_processes(work, **json.loads(line))), flush=True)


def _in_processes(
    work: Callable[..., None], processes: int, nodes: int, stop: bool, job: dict[str, Any]
) -> tuple[int, str]:
    with tempfile.TemporaryFile() as captured:
        children: list[int] = []
        for variables in as_torchrun(processes, nodes=nodes):
            leader = children[0] if children else 0
            child = os.fork()
            if child == 0:
                os.setpgid(0, leader)  # a group of their own
                if processes > 1:
                    os.environ.update(variables | {"GLOO_SOCKET_IFNAME": "lo"})
                _work_and_exit(work, job, captured.fileno())
            os.setpgid(child, leader)  # here too: whoever comes first
            children.append(child)
        code = _first_error(children, stop)
        captured.seek(0)
        return code, captured.read().decode()


def _work_and_exit(work: Callable[..., None], job: dict[str, Any], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        work(**job)
        code = 0
    except Stopped:
        code = STOPPED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the cleanup of the script


def _first_error(children: list[int], stop: bool) -> int:
    """Wait for the processes; with `stop`, all end if one does with an error. Return its exit code, or 0."""
    code = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        ended = os.waitstatus_to_exitcode(status)
        if ended and not code:
            code = ended
            for other in children if stop else []:  # as torchrun does
                os.kill(other, signal.SIGKILL)
    return code


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Shot:
    """A signal from elsewhere, as a scheduler sends it: to this process, or to all of its group, workers included."""

    kind: str
    group: bool

    def __call__(self) -> None:
        receiver = -os.getpgid(0) if self.group else os.getpid()
        sender = os.fork()
        if sender == 0:
            os.kill(receiver, signal.Signals[self.kind])
            os._exit(0)
        os.waitpid(sender, 0)


def after(calls: int) -> Callable[[], bool]:
    """Return a function that returns True once, when it has been called that often before."""
    count = 0

    def counted() -> bool:
        nonlocal count
        count += 1
        return count == calls + 1

    return counted


def kill_before(owner: type, method: str, at: int, shot: Callable[[], None] = die) -> None:
    """Kill this process when `method` has been called `at` times and is called once more."""
    original, due = getattr(owner, method), after(at)

    def called(self: Any, *arguments: Any) -> Any:
        if due():
            shot()
        return original(self, *arguments)

    setattr(owner, method, called)


def kill_in_checkpoint(at: int) -> None:
    """Kill this process in the middle of writing a checkpoint, after `at` others."""
    save, due = torch.save, after(at)

    def saved(state: Any, path: Any) -> None:
        save(state, path)
        if due():
            os.truncate(path, Path(path).stat().st_size // 2)
            die()

    checkpoint.torch.save = saved  # type: ignore[attr-defined]
