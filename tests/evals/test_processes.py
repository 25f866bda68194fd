"""Evaluations that are killed end in equal bits; two processes find what one does."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ..small_methods import vit
from ..train.killed_processes import Server
from ..train.test_killed import same

ENCODER = f"random:{vit(16)['backbone']}"
JOB: dict[str, Any] = {"task": "finetune", "encoder": ENCODER}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("data"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "out"
    code, output = server(folder, **JOB)
    assert code == 0, output
    return folder


def trained(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last checkpoint, and the result."""
    (result,) = folder.glob("finetune-*.json")
    state = torch.load(result.with_suffix("") / "finetune.ckpt", weights_only=True)
    assert not list(folder.rglob(".*.part")), "a half-written file of a killed process is still there"
    return state, json.loads(result.read_text())


def test_killed_at_three_points_it_ends_in_equal_bits(server: Server, alone: Path, tmp_path: Path) -> None:
    """A tiny transformer with all of the published regularisation."""
    folder = tmp_path / "out"
    for where, at in (("step", 2), ("checkpoint", 3), ("step", 4)):
        code, output = server(folder, where=where, at=at, **JOB)
        assert code == -signal.SIGKILL, output
    (left,) = folder.rglob("finetune.ckpt")
    assert torch.load(left, weights_only=True)["step"] == 2 + 3 + 4
    code, output = server(folder, **JOB)
    assert code == 0, output
    (state, result), (expected, figures) = trained(folder), trained(alone)
    assert state.keys() == {"format", "identity", "step", "classifier"}
    assert state["step"] == expected["step"] == 12
    for name, value in expected["classifier"].items():
        assert torch.equal(state["classifier"][name], value), name
    assert result["headline"] == figures["headline"]
    assert result["chosen"]["mixup"] == 0.8


def test_two_processes_train_what_one_does(server: Server, alone: Path, tmp_path: Path) -> None:
    code, output = server(tmp_path / "out", processes=2, **JOB)
    assert code == 0, output
    (state, result), (expected, figures) = trained(tmp_path / "out"), trained(alone)
    assert result["headline"] == figures["headline"]
    for name, value in expected["classifier"].items():
        torch.testing.assert_close(state["classifier"][name], value, rtol=1e-3, atol=1e-5, msg=name)


# Not transfer, which is fine-tuning under another name.
@pytest.mark.parametrize("task", ["linear", "semisup"])
def test_other_training_continues_too(task: str, server: Server, tmp_path: Path) -> None:
    """Killed in its middle, or in its second training, the same call ends in equal bits."""
    job: dict[str, Any] = {"task": task, "encoder": ENCODER}
    kills = {"linear": 4, "semisup": 7}
    code, output = server(tmp_path / "killed", where="step", at=kills[task], **job)
    assert code == -signal.SIGKILL, output
    left = {file.name: torch.load(file, weights_only=True) for file in tmp_path.rglob("*.ckpt")}
    assert sum(state["step"] for state in left.values()) == kills[task]
    for folder in ("killed", "alone"):
        code, output = server(tmp_path / folder, **job)
        assert code == 0, output
    ends = []
    for folder in ("killed", "alone"):
        (result,) = (tmp_path / folder).glob("*.json")
        files = sorted(result.with_suffix("").glob("*.ckpt"))
        states = {file.name: torch.load(file, weights_only=True) for file in files}
        ends.append((states, json.loads(result.read_text())["headline"]))
    same(ends[0], ends[1])
    assert (
        set(left)
        <= set(ends[0][0])
        == {
            "linear": {"linear.ckpt"},
            "semisup": {"semisup-50.ckpt", "semisup-100.ckpt"},
            "transfer": {"transfer.ckpt"},
        }[task]
    )
    heads = [name for name in ends[0][0].get("linear.ckpt", {"classifier": {}})["classifier"] if "encoder" in name]
    assert not heads  # a frozen encoder is not saved again and again


@pytest.mark.parametrize("task", ["knn", "clustering", "linear"])
def test_two_processes_find_what_one_does(task: str, server: Server, tmp_path: Path) -> None:
    """The second process extracts its share of the features; both write one result."""
    results = []
    for processes in (2, 1):
        folder = tmp_path / f"{processes}"
        (server.data.parent / "cache").mkdir(exist_ok=True)
        for file in (server.data.parent / "cache").iterdir():
            file.unlink()
        code, output = server(folder, processes=processes, task=task, encoder=ENCODER)
        assert code == 0, output
        (result,) = folder.glob("*.json")
        results.append(json.loads(result.read_text()))
    assert results[0]["headline"] == results[1]["headline"]
    assert results[0]["protocol"] == results[1]["protocol"]
