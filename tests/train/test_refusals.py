"""A run that is refused before it has trained leaves nothing behind; what was there before stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hirl import Hierarchy, Run, pretrain
from hirl.methods import MoCoV2
from hirl.studies.compare import compare
from hirl.studies.tune import tune

SMALL: dict[str, Any] = {"backbone": "resnet10t", "backbone_args": {"channels": [4, 4, 8, 8], "stem_width": 4}}
RECIPE = """
method: {{class_path: hirl.methods.MoCoV2, init_args: {{backbone: resnet10t, dim: 8, bn_splits: {splits}}}}}
hierarchy: {{levels: [9, 3], start_epoch: 1}}
epochs: 2
batch_size: 16
accelerator: cpu
"""


def method(**changes: Any) -> MoCoV2:
    return MoCoV2(**{**SMALL, "dim": 8, "queue_length": 32, "bn_splits": 2, **changes})


class Open(MoCoV2):
    """Has arguments that its constructor does not name."""

    def __init__(self, *, area: float = 0.5, **others: Any) -> None:
        super().__init__(**SMALL, **others)
        self.area = area


def options(**changes: Any) -> dict[str, Any]:
    given = {"method": method(), "hierarchy": Hierarchy(levels=(9, 3), negatives=4, start_epoch=1), "workers": 0}
    return {**given, "epochs": 2, "batch_size": 16, "accelerator": "cpu", "knn_every": 0, **changes}


REFUSED: dict[str, dict[str, Any]] = {
    "bn_splits": {"method": method(bn_splits=3)},
    "queue_length": {"method": method(queue_length=7)},
    "workers": {"workers": -1},
    "mean": {"mean": (0.5,)},
    "nothing": {"stage_one": "nothing"},
    r"seed is 9{20}, but must be at most 9223372036854775807": {"seed": 99999999999999999999},
    "batch_size is 16, but must be a multiple of the 3 processes .--devices, --nodes.: 15 or 18 would do": {
        "devices": 3
    },
    "batch_size is 16, but must be a multiple of 6, 2 parts .--accumulate. on each of the 3 processes": {
        "devices": 3,
        "accumulate": 2,
    },
    r"the constructor of Open has \*\*others, but must name each of its arguments": {"method": Open(lr=0.1)},
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_refused_run_leaves_no_folder(named: str, picture_files: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named):
        pretrain(str(picture_files), **options(**REFUSED[named], out=tmp_path / "runs" / "mine"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=named):
        pretrain(str(picture_files), **options(**REFUSED[named], out=tmp_path / "mine"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


@pytest.mark.parametrize("name", ["data", "out"])
def test_an_empty_text_is_not_the_current_folder(
    name: str, picture_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"data": str(picture_files), "out": tmp_path / "mine", name: ""}
    with pytest.raises(ValueError, match=f"{name} is '', but must be"):
        pretrain(given.pop("data"), **options(**given))
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_run_stays(picture_files: Path, tmp_path: Path) -> None:
    """One that was stopped before its first checkpoint, and one that has finished."""
    run = Run(tmp_path / "runs" / "mine")
    pretrain(str(picture_files), **options(out=run.folder))
    finished = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="another configuration"):
        pretrain(str(picture_files), **options(out=run.folder, method=method(bn_splits=3)))
    assert {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()} == finished
    for file in (run.checkpoint_file, run.encoder_file, run.metrics_file):
        file.unlink()
    with pytest.raises(ValueError, match="bn_splits"):
        pretrain(str(picture_files), **options(out=run.folder, method=method(bn_splits=3)))
    assert run.tree_file.exists()


def test_refused_comparisons_and_searches_leave_no_folder(picture_files: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(splits=3))
    with pytest.raises(ValueError, match="bn_splits"):
        compare(str(picture_files), [str(recipe)], seeds=(0,), tasks=("knn",), out=tmp_path / "a" / "comparison")
    with pytest.raises(ValueError, match="bn_splits"):
        tune(
            str(picture_files),
            method(bn_splits=3),
            out=tmp_path / "b" / "tuning",
            levels=[(9, 3)],
            epochs=2,
            batch_size=16,
            accelerator="cpu",
        )
    assert list(tmp_path.iterdir()) == [recipe]
