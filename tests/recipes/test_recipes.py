"""The shipped recipes: each is found by its name, parses into a run, and starts with its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hirl
from hirl.cli.compare import named_arms
from hirl.cli.main import main, parse
from hirl.recipes import recipe_file, recipe_names
from hirl.run import Run
from hirl.studies.arms import change

COMPLETE = [name for name in recipe_names() if name != "paper"]


@pytest.mark.parametrize("name", COMPLETE)
def test_a_recipe_makes_a_method_and_a_hierarchy(name: str) -> None:
    options = hirl.recipe(name)
    assert isinstance(options["method"], hirl.methods.Method)
    assert isinstance(options["hierarchy"], hirl.Hierarchy)
    assert options["hierarchy"].resolve(10**6, options["epochs"]).start_epoch < options["epochs"]


@pytest.mark.parametrize("name", COMPLETE)
def test_a_recipe_begins_with_its_commands(name: str) -> None:
    head = [line for line in recipe_file(name).read_text().splitlines() if line.startswith("#")]
    hirl_arm = any(re.search(rf"hirl pretrain \S+ --config {name}$", line) for line in head)
    baseline = any(line.endswith(f"--config {name} --hierarchy null") for line in head)
    assert hirl_arm, f"begin {name}.yaml with the comment: hirl pretrain DATA --config {name}"
    assert baseline, f"begin {name}.yaml with the comment: hirl pretrain DATA --config {name} --hierarchy null"


def test_the_papers_hirl_on_top_of_another_recipe() -> None:
    args = ["shapes", "--config", "small/moco_v2", "--config", "paper"]
    hierarchy = parse("pretrain", args).hierarchy
    small, large = (hirl.recipe(f"{size}/moco_v2")["hierarchy"] for size in ("small", "imagenet"))
    papers = large.resolve(10**6, 200)
    for name in ("weight", "features", "builder"):
        assert getattr(hierarchy, name) == getattr(papers, name) != getattr(small, name)
    assert hierarchy.bank_momentum == 0
    for name in ("levels", "negatives", "start_epoch"):
        assert getattr(hierarchy, name) == getattr(small, name)
    # As an arm it is the same.
    assert change(small, named_arms(["paper"])["paper"]) == hierarchy


def test_a_file_of_the_users_goes_before_a_recipe_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_file("small/dino").name == "dino.yaml"
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "dino").write_text("epochs: 3\n")
    assert recipe_file("small/dino") == Path("small/dino")


def test_a_recipe_is_trained_by_its_name(tmp_path: Path) -> None:
    import numpy as np

    pictures = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pictures)
    # Options come on top of the recipe, also those before it on the line.
    args = ["pretrain", str(tmp_path / "images.npz"), "--epochs", "1", "--config", "small/moco_v2"]
    smaller = ["--hierarchy", "null", "--batch_size", "64", "--method.queue_length", "64", "--accelerator", "cpu"]
    assert main([*args, *smaller, "--out", str(tmp_path / "run")]) == 0
    config = Run(tmp_path / "run").config
    assert config["method"]["init_args"]["queue_length"] == 64
    assert config["method"]["init_args"]["momentum"] == hirl.recipe("small/moco_v2")["method"].momentum
    assert config["hierarchy"] is None
    log = Run(tmp_path / "run").log_file.read_text()
    assert "MoCoV2 on 300 images" in log
    assert "epoch 1/1: loss_image" in log


def test_an_unknown_recipe_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "shapes", "--config", "small/nothing"]) == 2
    error = capsys.readouterr().err
    assert "small/nothing" in error
    assert "small/moco_v2" in error


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("epochs: many", "'mine.yaml': epochs is many, but must be a whole number, or null"),
        ("epoch: 3", "'mine.yaml': there is no option epoch: did you mean epochs?"),
        (
            "method: {class_path: hirl.methods.DINO, init_args: {dim: wide}}",
            "'mine.yaml': method.dim is wide, but must",
        ),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_sentence(
    options: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"{'' if 'method' in options else 'method: DINO'}\n{options}\n")
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the text is compared below)
        hirl.recipe("mine.yaml")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
