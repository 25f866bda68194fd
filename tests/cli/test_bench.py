"""`hirl bench`: a table per machine and advice that follows from it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from hirl.cli.main import main
from hirl.methods import MoCoV2
from hirl.train.machine import Machine
from hirl.train.speed import BACKWARD, DATA, FORWARD, REFRESH, REST, SPD, STAGES, Speed, Stopwatch, TimedRecipe
from hirl.train.speed_advice import advice, speed_table, variants

RECIPE = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [8, 8, 16, 16]},
            "dim": 8,
            "queue_length": 32,
            "bn_splits": 2,
            "lr": 0.001,  # noise must not make the loss NaN, however many steps fit into the time
        },
    },
    "hierarchy": {"levels": [6, 2], "negatives": 3},
    "epochs": 30,
    "batch_size": 16,
    "image_size": 16,
}
MEASURED = TimedRecipe(method=MoCoV2(), hierarchy=None, epochs=10, batch_size=128, image_size=32)
MACHINE = Machine("cpu", cores=2, memory=10**10, free=5 * 10**9)


def speed(images_per_second: float, *, data: float = 0.1, workers: int = 0) -> Speed:
    """An epoch of 1,000 images, with this share for the data."""
    seconds = 1000 / images_per_second
    shares = dict.fromkeys(STAGES, 0.0) | {DATA: data, FORWARD: 0.5 - data, BACKWARD: 0.4, SPD: 0.06, REFRESH: 0.04}
    return Speed({stage: share * seconds for stage, share in shares.items()}, 1000, workers, None)


def test_bench_measures_and_advises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(RECIPE))
    line = ["bench", str(tmp_path / "images.npz"), "--recipes", str(tmp_path / "own.yaml"), "--accelerator", "cpu"]
    assert main([*line, "--seconds", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert "Training on 40 of the 40 images" in printed
    for word in ("images/s", DATA, FORWARD, BACKWARD, SPD, REFRESH, "own.yaml is the fastest here: its 30 epochs"):
        assert word in printed
    for option in ("--batch_size 8", "--batch_size 32", "--image_size 32", "--precision bf16-mixed"):
        assert option in printed


def test_a_recipe_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--recipes", "small/dyno"]) == 2
    assert "there is neither a file nor a recipe 'small/dyno'" in capsys.readouterr().err
    assert main(["bench", "--recipes", "adapt/moco_v2"]) == 2
    assert "adapts a frozen encoder, but must train a network" in capsys.readouterr().err


def test_a_call_within_another_counts_once() -> None:
    class Owner:
        def outer(self) -> None:
            time.sleep(0.02)
            self.inner()

        def inner(self) -> None:
            time.sleep(0.03)

    owner, watch = Owner(), Stopwatch()
    for name in ("outer", "inner"):
        watch._wrap(owner, name, name, lambda: None)
    owner.outer()
    assert 0.02 <= watch.seconds["outer"] < 0.03 + watch.seconds["inner"]
    assert watch.seconds["inner"] >= 0.03


def test_the_table_has_shares_of_an_epoch_and_the_time_of_all() -> None:
    heading, row = speed_table({"small/x": speed(100)}, {"small/x": replace(MEASURED, epochs=60)}, N=500)
    cells = dict(zip(heading, row, strict=True))
    assert cells["images/s"] == "100"
    assert (cells[DATA], cells[BACKWARD], cells[REST]) == ("10%", "40%", "0%")
    assert cells["all epochs"] == "5 min"  # 60 · 500 / 100 s


def test_advice_names_what_is_faster() -> None:
    speeds = {"slow": speed(50), "quick": speed(100, data=0.4, workers=2)}
    changed = dict.fromkeys(variants(MEASURED, speeds["quick"], N=1000), speed(101))
    assert list(changed)[:3] == ["--batch_size 64", "--batch_size 256", "--image_size 64"]
    assert list(changed)[3:] == ["--precision bf16-mixed", "--workers 1", "--workers 4"]
    recipes = {"slow": MEASURED, "quick": MEASURED}
    same = "\n".join(advice(speeds, recipes, changed, MACHINE, N=1000))
    assert "quick is the fastest here: its 10 epochs of 1,000 images take about 2 min" in same
    assert "Halving or doubling --batch_size does not help" in same
    assert "not worth using" in same
    assert "Training waits for images 40% of the time" in same
    assert "take 10% to 10% of the time" in same
    changed |= {"--batch_size 256": speed(130), "--precision bf16-mixed": speed(200), "--workers 4": speed(150)}
    better = "\n".join(advice(speeds, recipes, changed | {"--image_size 64": speed(25)}, MACHINE, N=1000))
    assert "--batch_size 256 is 1.30 times as fast" in better
    assert "--image_size 64 takes 4.0 times as long as 32 px" in better
    assert "--precision bf16-mixed is 2.00 times as fast: use it" in better
    assert "--workers 4 is 1.50 times as fast as the default of 2" in better
