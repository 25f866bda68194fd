"""Tables on terminals of any width, and as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hirl.terminal.tables import latex, print_tables, write_tables

CELLS = [
    ["method", "figure", "base", "levels=300-30", "difference"],
    ["MoCoV2", "knn, 50 classes", "22.04", "", "+1 ± 2"],
]


def test_a_table_that_does_not_fit_becomes_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (200, 80, 40, 20):
        monkeypatch.setenv("COLUMNS", str(width))
        print_tables({"figures": CELLS})
        shown = capsys.readouterr().out
        assert "…" not in shown
        assert "figures" in shown
        assert all(cell in shown for cell in ("MoCoV2", "knn, 50 classes", "22.04", "+1 ± 2"))
        assert ("│" in shown) == (width >= 80)


def test_a_table_for_a_file_is_as_wide_as_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = [[*row, "x" * 90] for row in CELLS]
    print_tables({"figures": wide})
    assert "x" * 90 + " │\n" in capsys.readouterr().out


def test_latex_has_signs_in_math() -> None:
    assert r"a-b & $-$0.10 $\pm$ 0.20 & $<$0.001 & --" in latex("t", [["m"], ["a-b", "−0.10 ± 0.20", "<0.001", "–"]])


def test_files_hold_text_for_papers_and_numbers_for_programs(tmp_path: Path) -> None:
    write_tables(tmp_path, {"the figures": CELLS}, {"the figures": [["mean"], [0.5]]})
    assert (tmp_path / "the_figures.csv").read_text().split() == ["mean", "0.5"]
    assert "| MoCoV2 | knn, 50 classes | 22.04 |" in (tmp_path / "tables.md").read_text()
    tex = (tmp_path / "tables.tex").read_text()
    assert r"+1 $\pm$ 2 \\" in tex
    assert r"\begin{tabular}{lllll}" in tex
