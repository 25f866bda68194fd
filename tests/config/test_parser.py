"""The command line: lists, recipes, classes and their arguments, help, and error messages."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

import hirl
from hirl.config.parser import Parser
from hirl.config.values import rule
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.studies.tune import tune
from hirl.train.pretrain import pretrain

from ..small_methods import CHOICES


def read(*argv: str | Path, function: Any = pretrain) -> Namespace:
    parser = Parser(prog="hirl", argv=[str(arg) for arg in argv])
    parser.add_config_options(function, positional="data")
    return parser.read()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    options = {
        "method": {"class_path": "hirl.methods.DINO", "init_args": {"dim": 64, "lr": 0.5}},
        "hierarchy": {"levels": [12, 4], "negatives": 5},
        "epochs": 7,
        "data": "photos/",
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(options))
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    "levels",
    [["30", "10", "3"], ["30,10,3"], ["30, 10, 3"], ["[30,10,3]"], ["[30, 10, 3]"], ["30,10", "3"]],
)
def test_a_list_may_be_written_in_several_ways(levels: list[str]) -> None:
    for line in (["photos/", "--hierarchy.levels", *levels], ["--hierarchy.levels", *levels, "photos/"]):
        config = read("--method", "DINO", *line)
        assert config.hierarchy.levels == (30, 10, 3)
        assert config.data == "photos/"


def test_lists_of_one_number_of_fractions_and_of_lists() -> None:
    config = read(
        "photos/", "--method", "DINO", "--hierarchy.levels=30", "--mean", "0.5", ".5", "5e-1", "--std", "null"
    )
    assert config.hierarchy.levels == (30,)
    assert config.mean == (0.5, 0.5, 0.5)
    assert config.std is None
    for levels in (["30,10", "30,5"], ["[[30,10],[30,5]]"]):
        found = read("photos/", "--method", "DINO", "--levels", *levels, "--negatives", "3", function=tune)
        assert [list(sizes) for sizes in found.levels] == [[30, 10], [30, 5]]
        assert list(found.negatives) == [3]


def test_a_number_after_an_option_for_one_number_is_not_taken_for_a_list() -> None:
    config = read("--method", "DINO", "--epochs", "3", "2024")
    assert (config.epochs, config.data) == (3, "2024")


def test_the_command_line_wins_wherever_the_recipe_stands(recipe: Path) -> None:
    for line in (
        ["other/", "--epochs", "1", "--method.lr", "2", "--hierarchy.levels", "9", "3", "--config", recipe],
        ["--config", recipe, "other/", "--epochs", "1", "--method.lr", "2", "--hierarchy.levels", "9", "3"],
        [f"--config={recipe}", "--hierarchy.levels=9,3", "--epochs=1", "--method.lr=2", "other/"],
    ):
        config = read(*line)
        assert (config.data, config.epochs) == ("other/", 1)
        assert config.method == hirl.methods.DINO(dim=64, lr=2.0)
        assert config.hierarchy == hirl.Hierarchy(levels=(9, 3), negatives=5)


def test_a_recipe_names_the_images_and_a_later_one_comes_on_top(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("{epochs: 9, method: {init_args: {lr: 3}, class_path: DINO}, hierarchy: null}")
    config = read("--config", recipe, "--config", tmp_path / "more.yaml")
    assert (config.data, config.epochs, config.hierarchy) == ("photos/", 9, None)
    assert config.method == hirl.methods.DINO(dim=64, lr=3.0)


def test_another_method_drops_the_arguments_of_the_recipes(recipe: Path) -> None:
    assert read("--config", recipe, "--method", "DINO").method == hirl.methods.DINO(dim=64, lr=0.5)
    assert read("--config", recipe, "--method", "hirl.methods.dino.DINO").method.dim == 64
    assert read("--config", recipe, "--method", "MoCoV2").method == hirl.methods.MoCoV2()


def test_a_hierarchy_is_switched_off_and_on(recipe: Path, tmp_path: Path) -> None:
    assert read("--config", recipe, "--hierarchy", "null").hierarchy is None
    (tmp_path / "base.yaml").write_text("{method: DINO, hierarchy: null, data: photos/}")
    assert read("--config", tmp_path / "base.yaml").hierarchy is None
    config = read("--config", tmp_path / "base.yaml", "--hierarchy.negatives", "3")
    assert config.hierarchy == hirl.Hierarchy(negatives=3)


def test_a_class_within_a_class_has_options_of_its_own(own_module: str) -> None:
    builder = read("photos/", "--method", "DINO", "--hierarchy.builder.iterations", "3").hierarchy.builder
    assert builder == HierarchicalKMeans(iterations=3)
    line = ["--hierarchy.builder", f"{own_module}.Builder", "--hierarchy.builder.restarts", "2"]
    builder = read("photos/", "--method", "DINO", *line).hierarchy.builder
    assert type(builder).__name__ == "Builder"
    assert builder.restarts == 2


def test_a_builder_is_given_by_any_of_its_options(tmp_path: Path) -> None:
    def builder(*argv: str | Path) -> object:
        return read("photos/", "--method", "DINO", *argv).hierarchy.builder

    assert builder() is None
    assert builder("--hierarchy.builder", "null") is None
    assert builder("--hierarchy.builder.order", "top-down") == HierarchicalKMeans()
    assert builder("--hierarchy.builder", "HierarchicalKMeans") == HierarchicalKMeans()
    (tmp_path / "own.yaml").write_text("hierarchy: {builder: {iterations: 3}}")
    assert builder("--config", tmp_path / "own.yaml") == HierarchicalKMeans(iterations=3)
    (tmp_path / "none.yaml").write_text("hierarchy: {builder: null}")
    assert builder("--config", tmp_path / "none.yaml") is None
    line = ["--hierarchy.builder.order", "bottom-up"]
    assert builder("--config", tmp_path / "own.yaml", *line) == HierarchicalKMeans(iterations=3, order="bottom-up")
    assert builder("--config", tmp_path / "none.yaml", *line) == HierarchicalKMeans(order="bottom-up")
    with pytest.raises(ValueError, match=r"no option --hierarchy.builder.order, since --hierarchy.builder is null"):
        builder("--hierarchy.builder", "null", *line)


def test_a_method_of_ones_own_takes_the_arguments_of_a_recipe_that_names_it(own_module: str, tmp_path: Path) -> None:
    path = f"{own_module}.Mine"
    arguments = {"dim": 8, "flavour": "sweet"}
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"method": {"class_path": path, "init_args": arguments}, "data": "photos/"}))
    with pytest.raises(ValueError, match=rf"names the method '{path}', which is not part of hirl.*--method {path}"):
        read("--config", own)
    method = read("--config", own, "--method", path, "--method.widths", "3", "4").method
    assert (type(method).__name__, method.dim, method.flavour, method.widths) == ("Mine", 8, "sweet", (3, 4))
    with pytest.raises(ValueError, match=r"the option --method.dim is missing"):
        read("photos/", "--method", path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("photos/ --method", f"--method needs a value: {CHOICES}"),
        ("photos/ --method MoCo", f"there is no method 'MoCo': {CHOICES}"),
        ("photos/ --method.lr 3", "there is no option --method.lr, since --method is null"),
        ("photos/ --method DINO --hierarchy", "--hierarchy needs a value"),
        ("photos/ --method DINO --hierarchy no", "--hierarchy is no, but takes null alone"),
        ("photos/ --method DINO --hierarchy null --hierarchy.levels 3", "since --hierarchy is null"),
        ("photos/ --method DINO --config", "--config needs a value"),
        ("photos/ --method DINO --batch-size 3", "there is no option --batch-size: did you mean --batch_size?"),
        ("photos/ --method DINO --lr 3", "there is no option --lr: did you mean --method.lr?"),
        ("photos/ --method DINO --lr=3", "there is no option --lr: did you mean --method.lr?"),
        ("photos/ --method DINO --levels 3", "there is no option --levels: did you mean --hierarchy.levels?"),
        ("photos/ --method DINO --metod.lr 3", "there is no option --metod.lr: did you mean --method.lr"),
        ("photos/ --method DINO --confg 3", "there is no option --confg: did you mean --config?"),
        ("photos/ --method DINO --xyz 3", "there is no option --xyz"),
        ("photos/ more/ --method DINO", "unexpected argument 'more/'"),
        ("photos/ --method DINO --epochs", "--epochs needs a value"),
        ("photos/ --method DINO --epochs many", "--epochs is many, but must be a whole number, or null"),
        ("photos/ --method DINO --seed null", "--seed is null, but must be a whole number"),
        ("photos/ --method DINO --strict maybe", "--strict is maybe, but must be true or false"),
        ("photos/ --method DINO --mean some", "--mean is some, but must be a list of numbers, or null"),
        ("photos/ --method DINO --mean nan nan nan", "--mean is nan, but must be a list of finite numbers, or null"),
        ("photos/ --method dino", "for your own; did you mean DINO?"),
        ("photos/ --method DINO --hierarchy.levels 40 a", "unexpected argument 'a' after --hierarchy.levels"),
        ("photos/ --method DINO --epochs=", "--epochs is '', but must be a whole number"),
        ("photos/ --method DINO --hierarchy.assign stord", "one of stored, step, or null: did you mean stored?"),
        ("photos/ --method DINO --devices two", "--devices is two, but must be a whole number, or auto"),
        ("photos/ --method DINO --method.dim 2.5", "--method.dim is 2.5, but must be a whole number"),
        (
            "photos/ --method DINO --hierarchy.assign now",
            "--hierarchy.assign is now, but must be one of stored, step, or null",
        ),
    ],
)
def test_a_mistake_is_one_sentence(line: str, expected: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the text is compared below)
        read(*line.split())
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_may_hold_parameters_that_a_command_has_no_options_for(recipe: Path) -> None:
    parser = Parser(prog="hirl", argv=["--config", str(recipe), "--seed", "3"])
    parser.add_config_options(pretrain, positional="data", only={"method", "seed"})
    config = parser.read()
    assert set(vars(config)) == {"data", "method", "seed"}
    assert (config.data, config.method.dim, config.seed) == ("photos/", 64, 3)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit):
        read(*argv)
    return " ".join(capsys.readouterr().out.split())


def test_help_has_the_options_of_the_classes_that_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    assert "usage: hirl [data] [options]" in text
    assert "--batch_size BATCH_SIZE" in text
    assert "--hierarchy.levels N [N ...]" in text
    assert "--hierarchy.builder.iterations ITERATIONS Maximum number of Lloyd steps per level. (default: 20)" in text
    assert "--method.lr" not in text
    assert "--method.lr LR" in shown(capsys, "--method", "DINO", "--help")
    assert "--method.queue_length" in shown(capsys, "--config", "small/moco_v2", "--help")


def test_the_options_of_one_class_have_a_help_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--method.help", "DINO")
    assert "method options (DINO)" in text
    assert "--method.lr LR" in text
    assert "--epochs" not in text
    assert "--hierarchy.negatives" in shown(capsys, "--hierarchy.help")
    assert "--hierarchy.builder.iterations" in shown(capsys, "--hierarchy.builder.help")
    with pytest.raises(ValueError, match=f"--method.help needs a class: {CHOICES}"):
        read("--method.help")


def test_rules_in_words() -> None:
    assert rule(list[list[int]]) == "lists such as 300,30 300,100,10"
    assert rule(tuple[str, ...] | None) == "a list of text, or null"
