"""A module of the user's own, outside hirl."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

OWN = '''
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.methods import MoCoV2


class Mine(MoCoV2):
    """MoCo v2 with a longer name."""

    def __init__(self, *, dim: int, flavour: str = "plain", widths: tuple[int, ...] = (1, 2)) -> None:
        """
        Args:
            dim: Dimension of z0.
            flavour: A taste.
            widths: Several numbers.
        """
        super().__init__(dim=dim)
        self.flavour = flavour
        self.widths = widths


class Builder(HierarchicalKMeans):
    pass
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported and has not been yet."""
    name = "my_own_methods"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def reexporting_module(own_module: str, tmp_path: Path) -> Iterator[str]:
    """The name of a module that imports what `own_module` defines."""
    name = "reexporting"
    (tmp_path / "modules" / f"{name}.py").write_text(f"from {own_module} import Mine\n")
    importlib.invalidate_caches()  # the folder may have been listed already
    yield name
    sys.modules.pop(name, None)
