"""Help explains every option of every method and of every evaluation."""

from __future__ import annotations

import inspect
import re

import pytest

from hirl.cli.main import main
from hirl.config.signatures import parameters
from hirl.evals import EVALUATIONS

from ..small_methods import METHODS, NAMES


@pytest.mark.parametrize("name", NAMES)
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
    assert explained.keys() == inspect.signature(METHODS[name]).parameters.keys()
    assert all(len(text.split()) > 2 and text.endswith(".") for text in explained.values()), explained


@pytest.mark.parametrize("task", EVALUATIONS)
def test_every_option_of_an_evaluation_has_a_help_text(task: str) -> None:
    """Also what it takes over from another one, as fine-tuning on few images does."""
    assert all(parameter.about for parameter in parameters(EVALUATIONS[task]).values())
