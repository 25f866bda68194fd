"""The figures of an epoch are means over all its steps, whenever reports are made and wherever a run is killed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hirl import Hierarchy, Run, pretrain
from hirl.cli.main import main
from hirl.data import Shapes
from hirl.methods import MoCoV2
from hirl.methods.base import Plan
from hirl.runs.checkpoint import load_checkpoint
from hirl.train.loop import Loop
from hirl.train.means import Means
from hirl.train.report import Reporter

EPOCHS, STEPS = 3, 6
CLOCK = ("seconds_epoch", "images_per_second", "waiting_for_data")  # what may differ between equal runs


def train(out: Path, *, method: type[MoCoV2] = MoCoV2, **changes: Any) -> Run:
    """Three epochs of six steps; the last two have a tree."""
    options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 0}
    return pretrain(
        Shapes(images=100, size=16, cache=False),
        method(backbone="resnet10t", backbone_args={"channels": [8, 8, 16, 16]}, dim=16, queue_length=32, bn_splits=2),
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=1, weight=3.0),
        out=out,
        **options | changes,
    )


def epochs(run: Run) -> list[dict[str, Any]]:
    """The reports of full epochs, without what depends on the clock."""
    lines = [line for line in run.metrics() if "feature_std" in line]
    assert len(lines) == EPOCHS
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def printed_losses(run: Run) -> list[str]:
    return re.findall(r"epoch \d/3: (.*?), [\d,]+ images/s", run.log_file.read_text())


def shown(run: Run, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of `hirl show` and `hirl runs` that have losses."""
    capsys.readouterr()
    assert main(["show", str(run.folder)]) == main(["runs", str(run.folder.parent)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "loss" in line or "finished" in line]
    assert any("→" in line for line in lines)
    return [line.replace(str(run.folder), "") for line in lines]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that reports at the end of each epoch only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hirl.train.report.EVERY_SECONDS", math.inf)
        return train(tmp_path_factory.mktemp("full") / "runs" / "run")


def test_they_do_not_depend_on_when_reports_are_made(
    full: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hirl.train.report.EVERY_SECONDS", 0.0)  # after every step
    often = train(tmp_path / "runs" / "run")
    assert printed_losses(often) == printed_losses(full)
    assert len(printed_losses(often)) == EPOCHS
    assert epochs(often) == epochs(full)
    assert shown(often, capsys) == shown(full, capsys)
    steps = [line for line in often.metrics() if "recent_loss_image" in line]
    assert len(steps) == EPOCHS * STEPS
    for number, line in enumerate(epochs(often)):
        own = steps[number * STEPS : (number + 1) * STEPS]
        for name in ("loss_image", "contrast_accuracy", *(("loss_spd", "loss_joint") if number else ())):
            assert line[name] == pytest.approx(sum(step[f"recent_{name}"] for step in own) / STEPS, rel=1e-12)


def test_the_time_left_is_told_once_a_step_was_measured(tmp_path: Path) -> None:
    run, network = Run(tmp_path), cast(Any, torch.nn.Linear(1, 1))
    with Reporter(run, Plan(3, 1, batch_size=16, image_size=16), method=network, start=0) as reporter:
        for step in (1, 2):  # the first one warms everything up
            reporter.on_step(step, {}, {}, 16, 0.0)
            reporter.on_epoch_end(step - 1, step, {}, [])
    first, second = re.findall(r"epoch \d/3: .*", run.log_file.read_text())
    assert "left" not in first
    assert "min left" in second


class Killed(BaseException):
    """Ends a run at once, as a kill does: nothing is saved on the way out."""


@pytest.mark.parametrize("at", [2, 9, 17])
def test_they_are_the_same_after_a_kill(
    at: int, full: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Loop._step

    def killed(self: Loop, *arguments: Any) -> Any:
        if self.step == at:
            raise Killed
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", killed)
        with pytest.raises(Killed):
            train(tmp_path / "runs" / "run", checkpoint_minutes=1e-9)  # a checkpoint after every step
    assert load_checkpoint(tmp_path / "runs" / "run" / "last.ckpt")["step"] == at
    run = train(tmp_path / "runs" / "run")
    assert epochs(run) == epochs(full)
    assert printed_losses(run) == printed_losses(full)
    assert shown(run, capsys) == shown(full, capsys)


def test_loss_spd_is_reported_without_its_weight(full: Run) -> None:
    first, *later = epochs(full)
    assert not {"loss_spd", "loss_joint"} & first.keys()  # there is no tree
    for line in later:
        assert line["loss_joint"] == pytest.approx(line["loss_image"] + 3 * line["loss_spd"], rel=1e-6)
        assert line["loss_spd"] > 0


class Named(MoCoV2):
    """Reports a figure under a name of hirl's own."""

    def forward(self, views: Any, masks: Any, step: int) -> Any:
        output = super().forward(views, masks, step)
        return type(output)(output.loss, output.z0, output.target_z0, logs={"largest_node_0": output.loss.detach()})


def test_a_method_cannot_take_a_name_of_another_figure(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"the logs of Named have a figure 'largest_node_0', but must have names other"
    ):
        train(tmp_path / "run", method=Named)


def test_means_count_the_steps_that_have_a_figure() -> None:
    means, values = Means(), torch.rand(1000)
    for step, value in enumerate(values):
        means.add({"every": value} | ({"some": value} if step % 3 == 0 else {}))
        if step == 500:
            state, means = means.state_dict(), Means()
            means.load_state_dict(state, torch.device("cpu"))
    expected = {"every": float(values.double().mean()), "some": float(values[::3].double().mean())}
    assert means.take() == pytest.approx(expected, rel=1e-12)
    assert means.take() == {}
