"""Options as plain data: files that hold none, and objects that come back from YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import hirl
from hirl.config import read_options, to_plain
from hirl.config.parser import load
from hirl.hierarchy.builder import HierarchicalKMeans


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not: [a mapping", "is not a YAML file of options: line 1, column 16: expected ',' or ']'"),
        ("- 3\n", "is not a YAML file of options: it holds a list"),
        ("just text", "is not a YAML file of options: it holds a str"),
        ("on: 3\n", "is not a YAML file of options: the name True is not text"),
        (b"\xff\xfe\x00", "is not a YAML file of options: it is not a text file"),
    ],
)
def test_a_file_without_options_is_refused_by_name(text: str | bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=expected) as refused:
        read_options(file)
    assert str(refused.value).startswith(repr(str(file)))
    assert "\n" not in str(refused.value)


def test_an_empty_file_holds_no_options(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# nothing yet\n")
    assert read_options(tmp_path / "mine.yaml") == {}


def test_an_unknown_name_is_answered_with_the_recipes() -> None:
    with pytest.raises(ValueError, match=r"neither a file nor a recipe 'small/nothing'.*small/moco_v2"):
        read_options("small/nothing")


def test_objects_come_back_from_yaml() -> None:
    method = hirl.methods.DINO(dim=64, backbone_args={"img_size": 32})
    hierarchy = hirl.Hierarchy(levels=(12, 4), builder=HierarchicalKMeans(restarts=3))
    text = yaml.safe_dump(to_plain({"method": method, "hierarchy": hierarchy, "out": Path("runs/a")}))
    options = load(hirl.pretrain, yaml.safe_load(text), skip={"data"})
    assert options == {"method": method, "hierarchy": hierarchy, "out": "runs/a"}
