"""A page per command, written by the command itself when the site is built: what `--help` prints."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

from hirl.cli.main import COMMANDS, main

# The options of a method appear once it is chosen.
LINES = {"pretrain": [], "tune": ["--method", "MoCoV2"], "views": ["--method", "DINO"]}


def help_of(*line: str) -> str:
    """What `hirl LINE --help` prints, at a fixed width."""
    os.environ["COLUMNS"] = "110"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*line, "--help"])
    return printed.getvalue().rstrip()


def page(name: str) -> str:
    """The page of one command as Markdown."""
    about, guide = COMMANDS[name].about, COMMANDS[name].guide
    return (
        f"# hirl {name}\n\n{about[0].upper()}{about[1:]}. Guide: [{guide.partition('.')[0]}](../{guide}).\n\n"
        f"```text\n{help_of(name, *LINES.get(name, []))}\n```\n"
    )


def pages() -> dict[str, str]:
    """All pages, by their file."""
    found = {f"commands/{name}.md": page(name) for name in COMMANDS}
    return found | {"commands/index.md": f"# Commands\n\n```text\n{help_of()}\n```\n"}


def on_config(config: Any) -> Any:
    """Called by mkdocs: add the pages to the navigation."""
    for entry in config["nav"]:
        if "Commands" in entry:
            entry["Commands"] = [{"All": entry["Commands"]}, *({name: f"commands/{name}.md"} for name in COMMANDS)]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: add the pages."""
    from mkdocs.structure.files import File

    for place, content in pages().items():
        files.append(File.generated(config, place, content=content))
    return files
