"""`hirl pretrain --method.help NAME` explains every option of every method."""

from __future__ import annotations

import inspect
import re

import pytest

from hirl import methods
from hirl.cli.main import main


@pytest.mark.parametrize("name", [name for name in methods.__all__ if name != "Method"])
@pytest.mark.parametrize("command", ["pretrain", "views"])
def test_every_option_has_a_help_text(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--method.help", name])
    page = " ".join(capsys.readouterr().out.split())
    explained = {}
    for option in page.split(" --method.")[1:]:  # those of the usage line stand in brackets
        found = re.match(r"(\w+) (?:[A-Z_]+|\{true,false\}) ([^(].*?)(?: \((?:type|default): |$)", option)
        if found:
            explained[found[1]] = found[2]
    assert explained.keys() == inspect.signature(getattr(methods, name)).parameters.keys()
    assert all(len(text.split()) > 2 and text.endswith(".") for text in explained.values()), explained
