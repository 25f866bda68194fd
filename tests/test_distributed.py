"""The processes of a command: however they were started, each knows its rank, and what they exchange is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hirl import processes

from .forked import Forked, free_port, wait_for_all

WORK = """
import json, sys, torch
from pathlib import Path
from hirl.processes import run_on_first, is_first, launch, process_count
from hirl.ranks import world

fabric = launch("cpu", devices=int(sys.argv[1]))
again = launch("cpu", precision="bf16-mixed")  # joins the processes that are there
mine, rank = torch.arange(6).view(3, 2).T + 10.0 * world().rank, world().rank  # not contiguous
found = {
    "processes": [fabric.world_size, again.world_size, process_count(), world().size, rank, int(is_first())],
    "gathered": world().gather(mine).tolist(),
    "broadcast": world().broadcast(mine).tolist(),
    "sum": world().sum(mine).tolist(),
    "mean": world().mean(mine).tolist(),
    "max": world().max(mine.int()).tolist(),
    "share": world().share(torch.arange(4)).tolist(),
    "objects": world().gather_objects({"rank": rank}),
    "of_the_first": run_on_first(lambda: rank),
    "unchanged": bool((mine == torch.arange(6).view(3, 2).T + 10.0 * rank).all()),
}
Path(f"rank{rank}.json").write_text(json.dumps(found))
"""

SRUN = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "3"}


def variables(starter: str, rank: int, port: str) -> dict[str, str]:
    """What torchrun or srun sets for one of two processes."""
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    if starter == "torchrun":
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        return own | address | {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
    tasks = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1"}
    own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_JOB_NAME": "train"}
    return tasks | own | address | {"SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "localhost"}


@pytest.mark.parametrize("starter", ["bare", "torchrun", "srun"])
def test_processes_find_each_other(starter: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    port, work = free_port(), tmp_path / "work.py"
    if starter == "bare":
        wait_for_all([Forked(work, "2", cwd=tmp_path)])
    else:
        wait_for_all([Forked(work, "1", env=variables(starter, rank, port), cwd=tmp_path) for rank in range(2)])
    rows = [[[0, 2, 4], [1, 3, 5]], [[10, 12, 14], [11, 13, 15]]]
    for rank in range(2):
        one = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert one["processes"] == [2, 2, 2, 2, rank, int(rank == 0)]
        assert one["gathered"] == rows[0] + rows[1]
        assert one["broadcast"] == rows[0]
        assert one["sum"] == [[10, 14, 18], [12, 16, 20]]
        assert one["mean"] == [[5, 7, 9], [6, 8, 10]]
        assert one["max"] == rows[1]
        assert one["share"] == [[0, 1], [2, 3]][rank]
        assert one["objects"] == [{"rank": 0}, {"rank": 1}]
        assert one["of_the_first"] == 0
        assert one["unchanged"]


@pytest.mark.parametrize(
    ("variables", "asked", "expected"),
    [
        ({}, (1, 1), (1, 1)),
        ({}, ("auto", 1), (4, 1)),
        ({}, (2, 2), (2, 2)),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, ("auto", 1), (4, 2)),  # torchrun on two machines
        ({"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, ("auto", 1), (1, 1)),  # one process of it, beside four GPUs
        ({"WORLD_SIZE": "4"}, (2, 2), (2, 2)),  # started by `launch` on two machines
        (SRUN, ("auto", 1), (3, 2)),
        ({"SLURM_NTASKS": "6", "SLURM_NNODES": "2"}, (1, 1), (1, 1)),  # a batch script without srun
    ],
)
def test_who_started_them_decides_how_many_there_are(
    variables: dict[str, str], asked: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processes._counts(*asked, gpus=4) == expected


@pytest.mark.parametrize(
    ("variables", "options", "message"),
    [
        ({}, {"devices": 0}, "devices is 0, but must be at least 1"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, {"devices": 3}, "torchrun has started 4 processes"),
        (SRUN, {"devices": 4}, "SLURM has started 6 processes"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, {}, "SLURM was asked for 4 tasks, but must be asked for --ntasks-per-node=4"),
        ({}, {"precision": "16-mixed"}, "precision 16-mixed needs a GPU"),
    ],
)
def test_what_cannot_be_started_is_refused(
    variables: dict[str, str], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        processes.launch("cpu", **options)
