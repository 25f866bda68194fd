"""`hirl compare` and `hirl tune` through the command's entry point, at a tiny size."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hirl.cli.main import main
from hirl.data import open_images
from hirl.data.sources.image_set import ImageSet
from hirl.evals import KNN, Clustering, Evaluation, Result, Subject
from hirl.evals.base import Part
from hirl.features.image_request import ImageRequest
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.settings import Hierarchy
from hirl.run import Run
from hirl.studies import compare as comparison
from hirl.studies.arms import change
from hirl.studies.compare import compare
from hirl.studies.tune import grid
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

from ..small_methods import CHOICES

TINY: dict[str, Any] = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [8, 8, 16, 16]},
            "dim": 16,
            "queue_length": 80,
            "bn_splits": 2,
            "lr": 0.01,
        },
    },
    "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 1},
    "epochs": 2,
    "batch_size": 80,
    "accelerator": "cpu",
    "knn_every": 0,
}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled pictures of two parts and a recipe."""
    folder = tmp_path_factory.mktemp("compared")
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        labels = rng.integers(0, 4, 240)
        pictures = rng.integers(0, 256, (240, 16, 16, 3), dtype=np.uint8) // 4 + 40 * labels[:, None, None, None]
        np.savez(folder / f"{part}.npz", images=pictures.astype(np.uint8), labels=labels)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return folder


def line_for(room: Path, out: Path, *more: str) -> list[str]:
    files = [str(room / "train.npz"), str(room / "tiny.yaml"), "--test_data", str(room / "val.npz")]
    return ["compare", *files, "--tasks", "clustering", "--accelerator", "cpu", "--out", str(out), *more]


def test_arms_and_seeds_are_compared_in_pairs_and_nothing_is_done_twice(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all"
    assert main(line_for(room, out, "--seeds", "0", "1")) == 0
    shown = capsys.readouterr().out
    with (out / "figures.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"MoCoV2"}
    runs = {path.name: Run(path) for path in out.iterdir() if path.is_dir()}
    assert len(runs) == 4
    accuracy = next(row for row in rows if "accuracy" in row["figure"] and row["arm"] == "HIRL")
    figure = accuracy["figure"].removeprefix("clustering, ")

    def of(arm: str, seed: int) -> float:
        found = [run for run in runs.values() if run.folder.name.endswith(f"-{arm}-{seed}")]
        (file,) = found[0].results_folder.glob("clustering-*.json")
        return float(json.loads(file.read_text())["headline"][figure])

    pairs = [of("HIRL", seed) - of("base", seed) for seed in (0, 1)]
    mean, error = sum(pairs) / 2, abs(pairs[0] - pairs[1]) / 2
    assert float(accuracy["difference"]) == pytest.approx(mean)
    assert float(accuracy["standard_error"]) == pytest.approx(error)
    assert float(accuracy["seed_1"]) == of("HIRL", 1)
    difference = f"{100 * mean:+.2f}".replace("-", "−")
    assert f"{difference} ± {100 * error:.2f}" in shown
    for arm in ("base", "HIRL"):
        values = [100 * of(arm, seed) for seed in (0, 1)]
        assert f"{sum(values) / 2:.2f} ± {abs(values[0] - values[1]) / 2**0.5:.2f}" in shown
    assert r"$\pm$" in (out / "tables.tex").read_text()
    assert "too few epochs" in (out / "tables.md").read_text()
    for plot in ("figures", "differences"):
        assert (out / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{plot}.pdf").read_bytes().startswith(b"%PDF")

    def not_again(*_: object, **__: object) -> None:
        raise AssertionError("evaluated twice")

    monkeypatch.setattr(Clustering, "run", not_again)
    assert main(line_for(room, out, "--seeds", "0", "1")) == 0

    # A figure that is NaN is reported as such, and its pair is left out of the differences.
    (file,) = next(run for run in runs.values() if run.folder.name.endswith("-HIRL-1")).results_folder.glob("*.json")
    result = json.loads(file.read_text())
    result["headline"][figure] = math.nan
    del result["checksum"]  # a file without one is read unverified
    file.write_text(json.dumps(result))
    capsys.readouterr()
    assert main(line_for(room, out, "--seeds", "0", "1")) == 0
    shown = capsys.readouterr().out
    assert f"{100 * of('HIRL', 0):.2f} (1 of 2 not finite)" in shown
    difference = f"{100 * pairs[0]:+.2f}".replace("-", "−")
    assert f"{'0.00' if difference in ('+0.00', '−0.00') else difference} (1 pair left out)" in shown
    with (out / "figures.csv").open() as table:
        row = next(row for row in csv.DictReader(table) if row["figure"] == accuracy["figure"] and row["arm"] == "HIRL")
    assert (row["pairs"], row["left_out"], row["seed_1"]) == ("1", "1", "nan")


def test_an_ablation_has_an_arm_for_each_way(room: Path, tmp_path: Path) -> None:
    out = tmp_path / "ablation"
    assert main(line_for(room, out, "--ablate", "levels=6,2", "negatives=3")) == 0
    heading = (out / "tables.md").read_text().splitlines()[2]
    arms = "HIRL | difference | levels=6-2 | difference | negatives=3 | difference"
    assert heading == f"| method | figure | base | {arms} |"
    config = next(Run(path).config for path in out.iterdir() if "levels" in path.name and Run(path).exists)
    assert config["hierarchy"]["levels"] == [6, 2]
    assert config["hierarchy"]["negatives"] == 5


def test_any_setting_is_an_arm_and_all_arms_share_stage_one(room: Path, tmp_path: Path) -> None:
    """Every arm ends in the bits of the same run trained on its own."""
    long = TINY | {"epochs": 3, "hierarchy": TINY["hierarchy"] | {"start_epoch": 2}}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(long))
    out = tmp_path / "out"
    command, data, _, *others = line_for(room, out, "--ablate", "start_epoch=1", "builder.order=bottom-up")
    others += ["--arms", "paper: weight=1 levels=20,5", "mine: weight=3 head_layers=1 features=pass"]
    assert main([command, data, str(tmp_path / "long.yaml"), *others]) == 0
    runs = {path.name: Run(path) for path in out.iterdir() if path.is_dir()}
    assert len(runs) == 5
    (base,) = (run for name, run in runs.items() if "-base-" in name)
    assert len(list(base.checkpoints_folder.iterdir())) == 2
    found = {name: run.config["hierarchy"] for name, run in runs.items() if run is not base}
    mine = next(settings for name, settings in found.items() if "mine" in name)
    assert (mine["weight"], mine["head_layers"], mine["features"], mine["levels"]) == (3.0, 1, "pass", [12, 4])
    assert {settings["start_epoch"] for settings in found.values()} == {1, 2}
    (ordered,) = (name for name in found if "bottom-up" in name)
    assert found[ordered]["builder"]["init_args"]["order"] == "bottom-up"
    assert [name for name in found if not runs[name].tree.by_path] == [ordered]
    for name, settings in found.items():
        assert "stage one" in runs[name].log_file.read_text()
        options = recipe(tmp_path / "long.yaml")
        builder = HierarchicalKMeans(**settings.pop("builder")["init_args"])
        options |= {"hierarchy": Hierarchy(**settings, builder=builder), "out": tmp_path / f"alone {name}"}
        alone = pretrain(data, **options)
        assert alone.encoder_file.read_bytes() == runs[name].encoder_file.read_bytes()
        assert torch.equal(alone.tree.leaves, runs[name].tree.leaves)


def test_the_tree_keeps_its_place_among_other_epochs(room: Path, tmp_path: Path) -> None:
    """Two recipes of one method appear under their own names."""
    late = TINY | {"epochs": 8, "hierarchy": TINY["hierarchy"] | {"start_epoch": 4}}
    (tmp_path / "late.yaml").write_text(yaml.safe_dump(late))
    command, data, *others = line_for(room, tmp_path / "out", "--epochs", "2")
    assert main([command, data, str(tmp_path / "late.yaml"), *others]) == 0
    runs = [Run(path) for path in (tmp_path / "out").iterdir() if path.is_dir()]
    late_ones = [run.config["hierarchy"] for run in runs if "late" in run.folder.name]
    assert [hierarchy["start_epoch"] for hierarchy in late_ones if hierarchy is not None] == [1]
    with (tmp_path / "out" / "figures.csv").open() as file:
        names = {row["method"] for row in csv.DictReader(file)}
    assert names == {str(room / "tiny.yaml"), str(tmp_path / "late.yaml")}


def test_each_recipe_trains_for_a_multiple_of_its_own_epochs(room: Path, tmp_path: Path) -> None:
    later = TINY | {"epochs": 4, "hierarchy": TINY["hierarchy"] | {"start_epoch": 2}}
    (tmp_path / "later.yaml").write_text(yaml.safe_dump(later))
    command, data, *others = line_for(room, tmp_path / "out", "--epochs_factor", "1.5")
    assert main([command, data, str(tmp_path / "later.yaml"), *others]) == 0
    configs = [(path.name, Run(path).config) for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert [config["epochs"] for _, config in configs] == [6 if "later" in name else 3 for name, _ in configs]
    starts = [config["hierarchy"]["start_epoch"] for name, config in configs if "later" in name and "HIRL" in name]
    assert starts == [3]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("epochs: 3\n", f"the option method is missing: {CHOICES}"),
        ("- 3\n", "is not a YAML file of options"),
        ("method: {class_path: mine.Own, init_args: {}}\n", "names the method 'mine.Own', which is not part of hirl"),
        ("method: {class_path: hirl.methods.DINO, init_args: {wings: 2}}\n", "there is no option method.wings"),
        ("method: {class_path: hirl.methods.DINO}\nhierarchy: {wings: 2}\n", "there is no option hierarchy.wings"),
        ("method: {class_path: hirl.methods.DINO}\nhierarchy: null\n", "hierarchy null"),
    ],
)
def test_a_file_that_is_not_a_recipe_is_refused(
    recipe: str, expected: str, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(recipe)
    assert main(["compare", str(room / "train.npz"), str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


OWN = """
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.methods import MoCoV2


class Mine(MoCoV2):
    def __init__(self, *, backbone: str, backbone_args: dict, dim: int, lr: float, queue_length: int = 80) -> None:
        super().__init__(
            backbone=backbone, backbone_args=backbone_args, dim=dim, lr=lr, queue_length=queue_length, bn_splits=2
        )


class Builder(HierarchicalKMeans):
    pass
"""


@pytest.fixture
def own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recipe for a method outside hirl, whose module can be imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "methods_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    arguments = {name: TINY["method"]["init_args"][name] for name in ("backbone", "backbone_args", "dim", "lr")}
    recipe = TINY | {"method": {"class_path": "methods_of_mine.Mine", "init_args": arguments}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))
    yield tmp_path / "own.yaml"
    sys.modules.pop("methods_of_mine", None)


def test_methods_of_ones_own_are_compared_once_they_are_named(
    room: Path, own_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, data, _, *others = line_for(room, tmp_path / "out")
    line = [command, data, str(own_recipe), *others]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert "which is not part of hirl: name the class yourself, with --classes methods_of_mine.Mine" in error
    assert "methods_of_mine" not in sys.modules
    assert main([*line, "--classes", "methods_of_mine.Mine"]) == 0
    with (tmp_path / "out" / "figures.csv").open() as file:
        assert {row["method"] for row in csv.DictReader(file)} == {"Mine"}
    arm = ["--arms", "mine: builder=methods_of_mine.Builder", "--classes", "methods_of_mine.Mine"]
    assert main([*line, *arm]) == 2
    assert "with --classes methods_of_mine.Builder" in capsys.readouterr().err
    assert main([*line, *arm, "methods_of_mine.Builder"]) == 0
    (config,) = (tmp_path / "out").glob("*-mine-0/config.yaml")
    assert "methods_of_mine.Builder" in config.read_text()
    assert main([*line, "--classes", "methods_of_mine.Yours"]) == 2
    assert "there is no class 'methods_of_mine.Yours'" in capsys.readouterr().err


def test_a_method_of_ones_own_is_tuned_once_it_is_named(
    room: Path, own_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["tune", str(room / "train.npz"), "--config", str(own_recipe), "--out", str(tmp_path / "tuning")]
    line += ["--levels", "6,2", "--negatives", "3", "--held_out", "80"]
    assert main(line) == 2
    assert "which is not part of hirl" in capsys.readouterr().err
    assert main([*line, "--method", "methods_of_mine.Mine"]) == 0
    assert "--hierarchy.levels 6 2 --hierarchy.negatives 3" in capsys.readouterr().out
    run = Run(tmp_path / "tuning" / "levels-6-2-negatives-3")
    assert run.config["method"]["class_path"] == "methods_of_mine.Mine"
    assert run.config["method"]["init_args"]["lr"] == 0.01


def test_an_arm_with_options_of_the_builder_alone_is_hierarchical_k_means() -> None:
    for settings in ({"builder.order": "bottom-up"}, {"builder": None, "builder.order": "bottom-up"}):
        assert change(Hierarchy(), settings).builder == HierarchicalKMeans(order="bottom-up")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--ablate", "weight=-3"], "the arm weight=-3: weight is"),
        (["--ablate", "levels=10,100"], "the arm levels=10-100: levels"),
        (["--method.lr", "3"], "--method.lr is not an option of compare: it is a setting of recipe files"),
        (["--ablate", "depth=3"], "there is no setting 'depth': choose from levels"),
        (["--ablate", "weight"], "must be a setting and its value"),
        (["--ablate", "levels=6,x"], "levels"),
        (["--ablate", "negatives=3,4"], "negatives"),
        (["--ablate", "features=dreams"], "bank"),
        (["--ablate", "builder.order=sideways"], "top-down"),
        (["--ablate", "builder.wings=2"], "wings"),
        (["--arms", "weight=3"], "must be a name, a colon and settings"),
        (["--ablate", "weight=heavy"], "the arm weight=heavy"),
        (["--linear.rates", "0.1"], "--linear.rates is for the task linear"),
        (["--arms", "HIRL"], "neither a file nor a recipe 'HIRL'"),
        (["--arms", "small/dino"], "must hold options of hierarchy only"),
        (["--arms", "a/b: weight=3"], "the arm 'a/b' has a slash in its name"),
        (["--arms", "base: weight=3"], "cannot be called base"),
        (["--arms", "a: weight=3", "a: weight=2"], "twice"),
        (["--arms", "a b: weight=3", "a-b: weight=2"], "the same folder"),
        (["--arms", "a: weight=3 weight=2"], "must give each setting once"),
        (["--arms", "weight=2: weight=3", "--ablate", "weight=2"], "given twice"),
        (["--ablate", "weight=2", "weight=2.0"], "the same settings"),
        (["--ablate", "weight=1"], "tiny.yaml': the arms HIRL and weight=1 have the same settings"),
        (["--ablate", "builder.weighted=true"], "weighted is for order bottom-up"),
        (["--arms", "a: builder=no.such.Builder"], "no.such.Builder"),
        (["--seeds", "0", "0"], "named twice"),
        (["--seeds", "-1"], "at least 0"),
        (["--tasks", "semisup", "--semisup.shares", "2"], "semisup: share is 2.0, but must be above 0 and at most 1"),
        (["--tasks", "semisup", "--semisup.level", "9"], "semisup: level is 9"),
        (["--tasks", "finetune", "--finetune.epochs", "0"], "finetune: "),
        (["--tasks", "tree", "--tree.levels", "5", "50"], "tree: levels"),
        (["--tasks", "transfer"], "transfer needs images other than the run's: name them with --evaluation_data"),
        (["--tasks", "knn", "--knn.ks", "0"], "knn: ks are (0,)"),
        (["--tasks", "sing"], "there is no evaluation 'sing'"),
        (["--epochs", "0"], "at least 1"),
        (["--epochs_factor", "0"], "a number above 0"),
        (["--epochs_factor", "2", "--epochs", "3"], "give one of them"),
    ],
)
def test_a_mistake_is_one_sentence(
    more: list[str], expected: str, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line_for(room, tmp_path / "out", *more)) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_comparison_is_not_written_among_other_files(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main(line_for(room, tmp_path)) == 2
    assert "is not empty and has neither runs nor tables" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_runs_are_named_after_the_stem_of_their_recipe(tmp_path: Path) -> None:
    named = partial(comparison._folder_names, folder=tmp_path)
    assert named(["a/mine.yaml", "small/dino"]) == {"a/mine.yaml": "mine", "small/dino": "small-dino"}
    assert named(["a/mine.yaml", "b/mine.yaml"]) == {
        name: name.replace("/", "-") for name in ("a/mine.yaml", "b/mine.yaml")
    }
    (tmp_path / "a-mine.yaml-base-0").mkdir()  # of an earlier version
    assert named(["a/mine.yaml"]) == {"a/mine.yaml": "a-mine.yaml"}


def test_the_comparison_is_not_written_among_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its plots would make a labelled set one with images beside its class folders."""
    monkeypatch.chdir(tmp_path)
    Path("zoo/train/cat").mkdir(parents=True)
    for out in ("zoo", "zoo/study"):
        assert main(["compare", "zoo", "small/moco_v2", "--out", out]) == 2
        assert "is in the folder of the images" in capsys.readouterr().err


def test_the_data_that_are_evaluated_are_checked_before_training(room: Path, tmp_path: Path) -> None:
    """Images to train on need neither labels nor a split to test on if others are evaluated."""
    with np.load(room / "train.npz") as train:
        np.savez(tmp_path / "bare.npz", images=train["images"])
    bare, line = str(tmp_path / "bare.npz"), line_for(room, tmp_path / "out")
    assert main([line[0], bare, *line[2:], "--evaluation_data", str(room / "train.npz")]) == 0
    assert (tmp_path / "out" / "figures.csv").is_file()


@pytest.mark.parametrize(
    ("tasks", "trained", "evaluated", "expected"),
    [
        (["knn"], "bare", None, r"knn: .*bare\.npz has no labels, but this evaluation needs them"),
        (["clustering"], "train", "bare", "has no labels"),
        ([KNN(ks=(241,))], "train", None, "knn: K is 241, but must be at most the number of training images, 240"),
    ],
)
def test_images_that_a_task_cannot_be_evaluated_on_are_refused_before_training(
    tasks: list[Any], trained: str, evaluated: str | None, expected: str, room: Path, tmp_path: Path
) -> None:
    with np.load(room / "train.npz") as train:
        np.savez(tmp_path / "bare.npz", images=train["images"])
    files = {"bare": tmp_path / "bare.npz", "train": room / "train.npz", None: None}
    test = files["bare"] if evaluated == "bare" else room / "val.npz"
    given: dict[str, Any] = {"evaluation_data": files[evaluated], "test_data": test, "out": tmp_path / "out"}
    with pytest.raises(ValueError, match=expected):
        compare(files[trained], [str(room / "tiny.yaml")], tasks=tasks, accelerator="cpu", **given)
    assert not (tmp_path / "out").exists()


def test_a_task_that_needs_no_labels_is_compared_without_them(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the user's own, whose data it opens itself."""

    class Width(Evaluation):
        name = "width"

        def open_parts(self, request: ImageRequest) -> dict[Part, ImageSet]:
            assert request.data == "boxes"
            return {"test": open_images(room / "val.npz")}

        def run(self, subject: Subject) -> Result:
            return Result({"width": float(subject.features("test").shape[1])}, [])

    with np.load(room / "train.npz") as train:
        np.savez(tmp_path / "bare.npz", images=train["images"])
    monkeypatch.setattr(comparison, "write_plots", lambda *_: None)
    options: dict[str, Any] = {"evaluation_data": "boxes", "accelerator": "cpu", "out": tmp_path / "out"}
    out = compare(tmp_path / "bare.npz", [str(room / "tiny.yaml")], tasks=[Width()], **options)
    with (out / "figures.csv").open() as file:
        assert {row["figure"] for row in csv.DictReader(file)} == {"width, width"}


def test_tuning_finds_the_lowest_joint_loss_and_continues(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["tune", str(room / "train.npz"), "--config", str(room / "tiny.yaml"), "--out", str(tmp_path / "tuning")]
    line += ["--levels", "[[12, 4], [6, 2]]", "--negatives", "3", "5", "--held_out", "80"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    found = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "tuning").glob("*/losses.json")}
    assert len(found) == 4
    assert all(losses["joint"] == pytest.approx(losses["image"] + losses["spd"]) for losses in found.values())
    best = min(found, key=lambda name: found[name]["joint"]).split("-")
    assert f"--hierarchy.levels {best[1]} {best[2]} --hierarchy.negatives {best[4]}" in shown
    shutil.rmtree(tmp_path / "tuning" / "levels-6-2-negatives-3")
    assert main(line) == 0
    assert capsys.readouterr().out.count(": MoCoV2 on 160") == 1, "only the one that is gone is trained again"


def test_the_grid_is_the_papers_at_its_size_and_fits_smaller_ones() -> None:
    trees = {(30000, 10000, 1000), (30000, 10000, 5000)}
    assert set(grid(1_281_167, None, None)) == {(tree, count) for tree in trees for count in (100, 1000)}
    for levels, negatives in grid(500, None, None):
        assert levels[0] <= 500
        assert negatives < levels[0]
    with pytest.raises(ValueError, match="only 500 rows"):
        grid(500, [(1000, 10)], None)
