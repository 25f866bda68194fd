"""Class paths: what names a class, and that a file cannot have code outside hirl imported."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import hirl
from hirl.config import class_path, find_class, import_class
from hirl.config.parser import load
from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.methods.base import Method

from ..small_methods import CHOICES


@pytest.mark.parametrize("path", ["DINO", "hirl.methods.DINO", "hirl.methods.dino.DINO"])
def test_a_class_of_hirl_goes_by_several_names(path: str) -> None:
    assert find_class(path, Method) is hirl.methods.DINO
    assert find_class(path, Method, file="run/config.yaml") is hirl.methods.DINO


def test_a_builder_goes_by_its_name() -> None:
    assert find_class("HierarchicalKMeans", TreeBuilder) is HierarchicalKMeans
    assert class_path(HierarchicalKMeans) == "hirl.hierarchy.builder.HierarchicalKMeans"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("MoCo", f"there is no method 'MoCo': {CHOICES}"),
        ("hirl.methods.MoCo", "there is no method 'hirl.methods.MoCo'"),
        (
            "no.such.Method",
            "there is no method 'no.such.Method': No module named 'no'; PYTHONPATH must name the folder of your module",
        ),
        ("hirl.Hierarchy", "'hirl.Hierarchy' is not a method, but must be a subclass of hirl.methods.base.Method"),
        ("hirl.methods.Method", f"'hirl.methods.Method' is an abstract class: {CHOICES}"),
        ("os.path.join", "'os.path.join' is not a class but a function"),
        (".DINO", "there is no method '.DINO'"),
    ],
)
def test_a_wrong_name_is_one_sentence(path: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as refused:
        find_class(path, Method)
    assert "\n" not in str(refused.value)


def test_a_file_cannot_have_a_module_imported(own_module: str) -> None:
    elsewhere = f"{own_module}.Mine"
    values: list[dict[str, Any]] = [
        {"method": {"class_path": elsewhere, "init_args": {"dim": 8}}},
        {"method": elsewhere},
        {"method": "DINO", "hierarchy": {"builder": {"class_path": f"{own_module}.Builder"}}},
        {"method": "DINO", "hierarchy": {"builder": f"{own_module}.Builder"}},
        {"method": {"class_path": "DINO", "init_args": {"backbone_args": {"a": [{"class_path": elsewhere}]}}}},
        {"method": "DINO", "out": {"class_path": elsewhere}},
    ]
    for options in values:
        with pytest.raises(ValueError, match=r"not part of hirl|class_path within"):
            load(hirl.pretrain, options, source="mine.yaml", skip={"data"})
    assert own_module not in sys.modules


def test_a_file_may_name_the_classes_the_user_names(own_module: str) -> None:
    mine = import_class(f"{own_module}.Mine")
    options = {"method": {"class_path": f"{own_module}.Mine", "init_args": {"dim": 8}}}
    method = load(hirl.pretrain, options, classes=[mine], skip={"data"})["method"]
    assert type(method) is mine
    assert method.dim == 8
    with pytest.raises(ValueError, match="which is not part of hirl"):
        load(hirl.pretrain, options, classes=[hirl.methods.DINO], skip={"data"})


def test_a_class_may_be_named_by_where_it_is_imported_from(reexporting_module: str) -> None:
    mine = import_class(f"{reexporting_module}.Mine")
    assert find_class(f"{reexporting_module}.Mine", Method, file="a.yaml", classes=[mine]) is mine
