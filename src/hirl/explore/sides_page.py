"""A page with two frames: a page for the encoder that a run started from, beside the same page for the run."""

from __future__ import annotations

from pathlib import Path

from hirl.explore.page import check_page_folder, write_page
from hirl.runs.folder import RunFolder

START, ADAPTED = "start", "adapted"  # folders of the two pages within that of the page


def write_sides_page(run: RunFolder, folder: Path, what: str) -> None:
    """Write `folder`/index.html, which shows the pages in its folders start/ and adapted/; `what`: kind of page."""
    check_page_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = run.folder.resolve().name
    figures = {figure: [f"{one:.3f}" for one in both] for figure, both in (run.adaptation or {}).items()}
    sides = [
        {"name": "The start", "about": str(run.origin or ""), "page": f"{START}/index.html"},
        {"name": "After adaptation", "about": name, "page": f"{ADAPTED}/index.html"},
    ]
    data = {"title": f"{name} · {what}", "sides": sides, "figures": figures, "sheets": None}
    write_page(folder, "sides", f"{name} · {what} of the start and after adaptation", data)
