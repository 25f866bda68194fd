"""Checkpoints as encoders: an unfinished run, a kept checkpoint, and a run whose encoder or checkpoint has gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from hirl.cli.main import main
from hirl.explore.embed import embed
from hirl.features.open_encoder import open_encoder
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.faults import find_faults

KNN = ["knn", "--knn.ks", "10", "--device", "cpu"]


@pytest.fixture
def unfinished(runs: dict[str, Run]) -> Run:
    """The run as it was after the first of its two epochs, before its first tree."""
    return rewind(runs["hirl"])


def rewind(run: Run) -> Run:
    shutil.copy(run.checkpoints_folder / "epoch-0001.ckpt", run.checkpoint_file)
    run.encoder_file.unlink()
    run.drop_reports_after(load_checkpoint(run.checkpoint_file)["step"])
    return run


def resume(run: Run) -> int:
    """The command that continues a run; the configuration comes from a copy, in case its own is damaged."""
    recipe = run.folder.parent / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(run.config))
    line = ["pretrain", "--config", str(recipe), "--out", str(run.folder), "--accelerator", "cpu", "--devices", "1"]
    return main([*line, "--knn_every", "0"])


def test_checkpoints_are_kept_by_number(runs: dict[str, Run]) -> None:
    kept = sorted(runs["hirl"].checkpoints_folder.iterdir())
    assert [file.name for file in kept] == ["epoch-0001.ckpt", "epoch-0002.ckpt"]
    assert [load_checkpoint(file)["step"] for file in kept] == [3, 6]


@pytest.mark.filterwarnings("default::UserWarning")
def test_an_unfinished_run_is_evaluated_and_marked(unfinished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(unfinished.folder), *KNN]) == 0
    out, errors = capsys.readouterr()
    assert "(unfinished: epoch 1 of 2)" in out
    assert "is unfinished: epoch 1 of 2; its last checkpoint is used" in errors
    (file,) = unfinished.results_folder.glob("knn-*.json")
    stored = json.loads(file.read_text())["encoder"]
    assert stored["state"] == "unfinished: epoch 1 of 2"
    assert stored["weights"].endswith("last.ckpt")


def test_a_kept_checkpoint_is_evaluated_and_embedded(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["hirl"]
    for epoch, state in ((1, "unfinished: epoch 1 of 2"), (2, None)):
        file = run.checkpoints_folder / f"epoch-000{epoch}.ckpt"
        assert main(["evaluate", str(file), *KNN]) == 0
        opened = open_encoder(file)
        assert opened.description.get("state") == state
        assert opened.image_size == 16
    last = run.encoder_weights()[0]
    assert all(torch.equal(last[name], weight) for name, weight in opened.network.state_dict().items())
    assert len(list(run.results_folder.glob("knn-*.json"))) == 2
    assert main(["embed", str(file), "--out", str(tmp_path / "z.npz"), "--device", "cpu"]) == 0
    with np.load(tmp_path / "z.npz") as arrays:
        assert arrays["z2"].shape == (144, 16)
        assert arrays["path"].shape == (144, 2)


def test_the_checkpoint_of_a_finished_run_is_its_encoder(runs: dict[str, Run]) -> None:
    """To the bit, with the same metadata: results stay comparable, and the same command writes the same file."""
    run = runs["hirl"]
    content, opened = run.encoder_file.read_bytes(), open_encoder(run)
    run.encoder_file.write_bytes(content[:-100])
    with pytest.warns(UserWarning, match=r"encoder\.safetensors' is damaged; the encoder is taken from last\.ckpt"):
        again = open_encoder(run)
    assert again.sha256 == opened.sha256
    assert (again.image_size, again.mean, again.std) == (opened.image_size, opened.mean, opened.std)
    assert "state" not in again.description
    assert resume(run) == 0
    assert run.encoder_file.read_bytes() == content


def test_a_damaged_tree_comes_from_the_checkpoint(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    path = embed(run, device="cpu", quiet=True)["path"]
    run.tree_file.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"tree\.safetensors' is damaged; the tree is taken from last\.ckpt"):
        assert embed(run, device="cpu", quiet=True)["path"].shape == path.shape
    assert resume(run) == 0
    assert run.tree.levels == (24, 6)


def test_a_lost_checkpoint_does_not_start_the_run_again(unfinished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished.checkpoint_file.unlink()
    before = {file: file.read_bytes() for file in unfinished.folder.rglob("*") if file.is_file()}
    assert resume(unfinished) == 2
    shown = capsys.readouterr().err
    assert "its last.ckpt is missing, so it cannot continue" in shown
    assert "epoch-0002.ckpt" in shown
    assert all(file.read_bytes() == content for file, content in before.items())
    assert main(["runs", str(unfinished.folder.parent)]) == 0
    assert "broken: last.ckpt" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_report_that_cannot_be_read_costs_no_other(unfinished: Run) -> None:
    lines, reports = unfinished.metrics_file.read_text().splitlines(), list(unfinished.metrics())
    other = lines[1].replace('"epoch": ', '"epoch": 1')  # one digit more
    unfinished.metrics_file.write_text("\n".join([lines[0][:20], *lines[1:], "3", '{"step": null}', other, ""]))
    assert list(unfinished.metrics()) == reports[1:]
    assert "4 lines of metrics.jsonl are damaged" in find_faults(unfinished)
    assert resume(unfinished) == 0
    assert [line for line in unfinished.metrics() if line["step"] <= 3][: len(lines) - 1] == reports[1:]


def test_a_broken_run_is_listed_among_the_others(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    runs["base"].config_file.write_text("epochs: [3")
    assert main(["runs", str(runs["base"].folder.parent)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "broken: config.yaml is damaged" in shown
    assert "MoCoV2, HIRL, finished" in shown
    runs["base"].config_file.unlink()
    assert main(["runs", str(runs["base"].folder.parent)]) == 0
    assert "broken: config.yaml is missing" in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("value", ["-1", "often"])
def test_keep_every_is_checked(value: str, runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    config = str(runs["base"].config_file)
    assert main(["pretrain", "--config", config, "--out", "x", "--keep_every", value]) == 2
    assert "but must be" in capsys.readouterr().err
