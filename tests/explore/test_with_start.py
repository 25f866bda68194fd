"""Pages of an adapted run beside those of its start, and what they say about where the weights come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hirl import Run
from hirl.cli.main import main
from hirl.encoders.weights_source import Provenance

from .conftest import CLASSES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

expect = pytest.importorskip("playwright.sync_api").expect

ORIGIN = Provenance("weights of <b>somebody</b>", "MIT", labels=True)


@pytest.fixture
def adapted(runs: dict[str, Run], tmp_path: Path) -> Run:
    """A run as if it had adapted an encoder, which is its own here."""
    run = Run(shutil.copytree(runs["hirl"].folder, tmp_path / "run"))
    shutil.copy(run.encoder_file, run.start_file)
    run.adaptation_file.write_text(json.dumps({"silhouette of 4 clusters": [0.1, 0.25, 0.05]}))
    run.record_origin(ORIGIN)
    return run


@pytest.mark.filterwarnings("ignore:.*cannot be read")
@pytest.mark.parametrize("command", ["tree", "search", "duplicates"])
def test_two_pages_in_one(
    command: str, adapted: Run, photos: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    query = [str(photos / CLASSES[2] / "03.png")] if command == "search" else []
    given = [command, str(adapted.folder), *query, "--data", str(photos), "--with_start", "--workers", "0"]
    assert main(given) == 0
    folder = adapted.folder / f"{command}_with_start"
    assert "Page that shows both written to" in capsys.readouterr().out
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto((folder / "index.html").as_uri())
    expect(page.locator(".side h2")).to_have_text(["The start", "After adaptation"])
    expect(page.locator(".side p").first).to_have_text(str(ORIGIN))
    for place in range(2):
        expect(page.frame_locator("iframe").nth(place).locator("h1, h2").first).to_be_visible()
    page.locator("#figures summary").click()
    expect(page.locator("#figures tbody td")).to_have_text(["silhouette of 4 clusters", "0.100", "0.250", "0.050"])
    assert problems == []
    context.close()
    assert main(given) == 0  # again, into the same folder


def test_only_an_adapted_run_has_a_start(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", str(runs["hirl"].folder), "--with_start"]) == 2
    assert "must be a run that adapted a frozen encoder to use --with_start" in capsys.readouterr().err
    shutil.copy(runs["hirl"].encoder_file, runs["hirl"].start_file)
    assert main(["tree", str(runs["hirl"].folder), "--with_start", "--text"]) == 2
    assert "--with_start is for pages" in capsys.readouterr().err
    assert main(["tree", str(runs["hirl"].folder), "--with_start"]) == 2  # of a .npz, which is read as features
    assert "but with --with_start must be a folder of images or a known name" in capsys.readouterr().err


def test_pages_say_where_the_weights_come_from(adapted: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(adapted.folder), "--page"]) == 0
    assert main(["show", str(adapted.folder)]) == 0
    assert f"started from {ORIGIN}" in capsys.readouterr().out
    page = (adapted.folder / "page" / "index.html").read_text()
    assert "Started from weights of \\u003cb>somebody\\u003c/b>, licence MIT, trained with labels" in page
    assert '"adaptation":{"silhouette of 4 clusters":["0.100","0.250","0.050"]}' in page
