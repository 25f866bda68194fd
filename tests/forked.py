"""Processes that are there at once: forked from one that has imported everything, which takes a new one ten seconds.

    process = Forked("hirl.cli.main", "show", "runs/x", env={"RANK": "1"})
    assert process.wait() == 0, process.errors

They have an environment, a working directory and an output of their own, and end with an exit code or by a signal.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import tempfile
import warnings
from multiprocessing import get_context
from pathlib import Path

_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["hirl.cli.main", "hirl.train.resume", "hirl.evals", "hirl.explore.embed", "timm", "torch.utils.tensorboard"]
)


class Forked:
    """`python -m code arguments`, or `python code arguments` of a file; `env` is added to the environment."""

    def __init__(
        self, code: str | Path, *arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.files = tempfile.TemporaryDirectory(prefix="forked-")
        line = [str(code), *map(str, arguments)]
        variables = dict(os.environ) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | (env or {})
        self.process = _SERVER.Process(target=_run, args=(line, variables, str(cwd or Path.cwd()), self.files.name))
        self.process.start()

    def wait(self, timeout: float = 300) -> int | None:
        """Return the exit code, which is negative for a signal."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"after {timeout:.0f} seconds it is still running: {self.errors}")
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    @property
    def output(self) -> str:
        return Path(self.files.name, "output").read_text()

    @property
    def errors(self) -> str:
        return Path(self.files.name, "errors").read_text()


def wait_for_all(processes: list[Forked]) -> None:
    """Until each has ended; an error of any of them is an error of the test."""
    for process in processes:
        assert process.wait() == 0, process.errors


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return str(free.getsockname()[1])


def as_torchrun(size: int, *, nodes: int = 1) -> list[dict[str, str]]:
    """What torchrun tells each of so many processes, on so many machines."""
    here = size // nodes
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "none"}
    shared |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(here)}
    own = ({"RANK": rank, "LOCAL_RANK": rank % here, "GROUP_RANK": rank // here} for rank in range(size))
    return [shared | {name: str(value) for name, value in one.items()} for one in own]


def _run(line: list[str], variables: dict[str, str], cwd: str, folder: str) -> None:
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    for name, stream in (("output", 1), ("errors", 2)):
        with open(f"{folder}/{name}", "w") as file:  # noqa: PTH123
            os.dup2(file.fileno(), stream)
    added = [place for place in variables.get("PYTHONPATH", "").split(os.pathsep) if place and place not in sys.path]
    sys.path[:0] = added
    sys.argv = line
    warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
    if line[0].endswith(".py"):
        runpy.run_path(line[0], run_name="__main__")
    else:
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)
