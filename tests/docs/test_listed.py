"""Every method, evaluation and target of hirl export has a row in the tables of the page that is about them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from tests.docs.fences import ROOT
from tests.small_methods import METHODS

from hirl.evals import EVALUATIONS
from hirl.export.export_encoder import WRITERS

PAGES: dict[str, Iterable[str]] = {
    "methods.md": METHODS,
    "views.md": METHODS,
    "evaluation.md": EVALUATIONS,
    "export.md": WRITERS,
}


def listed(page: str) -> set[str]:
    """The names in the first column of the tables of a page, each in backticks."""
    rows = re.findall(r"^\|([^|]*)\|", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {name for cell in rows for name in re.findall(r"`([\w-]+)`", cell)}


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in PAGES.items() for name in names])
def test_what_is_built_in_has_a_row(page: str, name: str) -> None:
    assert name in listed(page), f"add a row that begins with `{name}` to the table in docs/{page}"
