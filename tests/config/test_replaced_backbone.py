"""A recipe's `backbone_args` belong to the recipe's backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hirl.config.parser import Parser
from hirl.train.pretrain import pretrain

RECIPE = {
    "class_path": "hirl.methods.MoCoV2",
    "init_args": {"backbone": "resnet18", "backbone_args": {"layers": [1, 1]}},
}


def read(folder: Path, *argv: str) -> object:
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"method": RECIPE}))
    parser = Parser(argv=["--config", str(folder / "recipe.yaml"), *argv])
    parser.add_config_options(pretrain, positional="data")
    return parser.read().method.arguments["backbone_args"]


def test_arguments_of_a_replaced_backbone_go_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"backbone_args .* are dropped, since --method.backbone resnet50 names another"
    ):
        assert read(tmp_path, "--method.backbone", "resnet50") is None


def test_arguments_stay_with_their_backbone(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert read(tmp_path) == {"layers": [1, 1]}
    assert read(tmp_path, "--method.backbone", "resnet18") == {"layers": [1, 1]}
    given = read(tmp_path, "--method.backbone", "resnet50", "--method.backbone_args", "{base_width: 32}")
    assert given == {"base_width": 32}
    assert not recwarn.list
