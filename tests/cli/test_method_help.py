"""Help explains every option of every command, method and evaluation, in sentences."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest

from hirl.cli.main import COMMANDS, main
from hirl.config.parser import Parser
from hirl.config.signatures import parameters
from hirl.evals import EVALUATIONS

from ..small_methods import METHODS, NAMES

LOWER_CASE = ("cpu", "timm", "umap", "α")  # values and names that a sentence may begin with


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_explained_in_a_sentence(name: str) -> None:
    """With the options of the classes that the command's examples choose."""
    for line in COMMANDS[name].examples:
        parser = Parser(prog=f"hirl {name}", argv=shlex.split(line)[2:])
        COMMANDS[name].options(parser)
        wrong = {
            option: text
            for option, text in ((option.name, option.about) for option in parser.options.values())
            if not text.endswith(".")
            or len(text.split()) < 3
            or (text[0].islower() and not text.startswith(LOWER_CASE))
        }
        assert not wrong, f"the help of these options must be a sentence, with a capital and a full stop: {wrong}"


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
