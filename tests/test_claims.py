"""Tasks shared through a folder: each is done once, and those of dead processes are done by others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hirl import claims
from hirl.claims import claim, share_tasks

WORKER = """
import sys, time
from pathlib import Path
from hirl import claims

claims.POLL = 0.05
folder, hangs = Path(sys.argv[1]), sys.argv[2] == "hangs"
for task in claims.share_tasks([f"{number:02}" for number in range(12)], folder, lambda task: (folder / task).exists()):
    (folder / "log").open("a").write(f"{task}\\n")
    time.sleep(3600 if hangs else 0.05)
    (folder / task).touch()
"""


def start(folder: Path, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), kind])


def test_three_processes_do_each_task_once_and_the_one_of_a_dead_process_again(tmp_path: Path) -> None:
    dead = start(tmp_path, "hangs")
    while not (tmp_path / "log").exists():
        time.sleep(0.05)
    dead.kill()
    dead.wait()
    workers = [start(tmp_path, "works") for _ in range(3)]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
    done = (tmp_path / "log").read_text().split()
    assert sorted(done) == ["00", *(f"{number:02}" for number in range(12))]
    assert not list(tmp_path.glob(".*"))


def test_a_claim_is_held_by_one_and_freed(tmp_path: Path) -> None:
    with claim(tmp_path / "task") as first, claim(tmp_path / "task") as second:
        assert (first, second) == (True, False)
    with claim(tmp_path / "task") as again:
        assert again


@pytest.mark.parametrize(("age", "free"), [(0, False), (claims.DEAD - 20, False), (claims.DEAD + 20, True)])
def test_a_claim_of_another_machine_is_dead_after_a_minute(tmp_path: Path, age: float, free: bool) -> None:
    path = tmp_path / "task"
    path.write_text(json.dumps({"host": "elsewhere", "pid": os.getpid(), "id": "1"}))
    os.utime(path, (time.time() - age,) * 2)
    with claim(path) as held:
        assert held is free


def test_a_holder_touches_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.01)
    with claim(tmp_path / "task"):
        os.utime(tmp_path / "task", (0, 0))
        for _ in range(500):
            if (tmp_path / "task").stat().st_mtime > 0:
                break
            time.sleep(0.01)
        assert (tmp_path / "task").stat().st_mtime > 0


def test_work_that_fails_frees_its_task(tmp_path: Path) -> None:
    tasks = share_tasks(["a"], tmp_path, lambda _: False)
    assert next(tasks) == "a"
    tasks.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


def test_a_task_that_leaves_no_result_is_not_given_again(tmp_path: Path) -> None:
    assert list(share_tasks(["a", "b"], tmp_path, lambda _: False)) == ["a", "b"]
