"""The site has a page for every command and shows every page; nothing is described twice by hand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hirl.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]


def shown(entries: Any) -> list[str]:
    """The pages in the navigation, in their order."""
    if isinstance(entries, str):
        return [entries]
    parts = entries.values() if isinstance(entries, dict) else entries
    return [page for part in parts for page in shown(part)]


@pytest.fixture(scope="module")
def command_pages() -> Any:
    spec = importlib.util.spec_from_file_location("command_pages", ROOT / "docs" / "command_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation(command_pages: Any) -> None:
    nav = shown(command_pages.on_config(yaml.safe_load((ROOT / "mkdocs.yml").read_text()))["nav"])
    written = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    commands = {f"commands/{name}.md" for name in COMMANDS} | {"commands/index.md"}
    missing, unknown = (written | commands) - set(nav), set(nav) - written - commands
    assert not missing, f"add to nav in mkdocs.yml: {sorted(missing)}"
    assert not unknown, f"nav in mkdocs.yml names pages that do not exist: {sorted(unknown)}"
    assert len(nav) == len(set(nav)), "nav in mkdocs.yml names a page twice"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_guide_and_examples(name: str) -> None:
    command = COMMANDS[name]
    page, _, anchor = command.guide.partition("#")
    assert (ROOT / "docs" / page).is_file(), f"the guide of {name} (cli/{name}.py) is no page: {command.guide}"
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    anchors = [re.sub(r"[^\w]+", "-", heading.lower()).strip("-") for heading in headings]
    assert anchor in ("", *anchors), f"{page} has no heading {anchor!r}, which cli/{name}.py names: {anchors}"
    assert command.examples, f"{name} has no example for `hirl --help`: add one in cli/{name}.py"
    for line in command.examples:
        assert line.split()[:2] == ["hirl", name], f"{line!r} is not an example of hirl {name} (cli/{name}.py)"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_its_help(name: str, command_pages: Any) -> None:
    page = command_pages.page(name)
    assert f"usage: hirl {name}" in page
    assert page.count("--") >= 1
