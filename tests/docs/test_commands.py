"""Every command in README and docs is one that exists, with options that exist; short ones are run on a few images."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.docs.fences import ROOT, Line, command_lines, inline_commands

from hirl.cli.main import COMMANDS, main, parse

LINES = command_lines()
EXAMPLES = [Line("hirl --help", tuple(shlex.split(line))) for command in COMMANDS.values() for line in command.examples]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OTHERS = {".", "pip", "export"}  # activating an environment, installing into one's own, setting a variable
# Not run here: they need data that is not there, or hours. Their options are checked, and they are run in a small form
# by the tests of their rooms: tests/studies, tests/evals, tests/recipes, tests/explore.
LARGE = (
    "imagenet", "coco/", "pennfudan", "wordnet50", "resnet50", "vit_", "semisup", "finetune", "linear", "compare",
    "tune", "demo", "bench", "--ray", "my_package", "encoder.pth", "shapes-64", "--against", "--devices",
)  # fmt: skip
FEWER = {"3000 300 30": "12 4 2", " shapes": " photos/", "--size 200": "--size 20", "--node 2-17": "--node 2-0"}
SMALL_VIT = '{"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}'
SMALL_DINO = ["--method.backbone", "vit_tiny_patch16_224", "--method.backbone_args", SMALL_VIT, "--method.dim", "16"]
SMALL_DINO += ["--method.hidden", "32", "--method.prototypes", "32", "--method.local_crops", "0"]
ALIKE = {"--hierarchy", "--method.temperature", "--out"}  # a run differs little with these


def is_hirl(line: Line) -> bool:
    with_own_module = line.parts[0].startswith("PYTHONPATH=") and line.parts[1] == "hirl"
    return line.parts[0] in ("hirl", "torchrun") or with_own_module


def arguments(line: Line) -> list[str]:
    command = "hirl.cli.main" if line.parts[0] == "torchrun" else "hirl"
    return list(line.parts[line.parts.index(command) + 1 :])


def test_only_known_commands_are_shown() -> None:
    assert len(LINES) > 60
    for line in (*LINES, *inline_commands()):
        if is_hirl(line):
            assert arguments(line)[0] in COMMANDS or arguments(line)[0].startswith("--"), line
        elif line.parts[0] == "make":
            assert set(line.parts[1:]) <= TARGETS, line
        elif line.parts[0] == "python":
            name = line.parts[2] if line.parts[1] == "-m" else line.parts[1]
            file = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
            places = [folder / file for folder in (ROOT, ROOT / "src")]
            assert any(place.is_file() or place.with_suffix("").is_dir() for place in places), line
        else:
            assert line.parts[0] in OTHERS, f"{line}: what is {line.parts[0]}?"


@pytest.mark.parametrize("line", [line for line in [*LINES, *EXAMPLES] if is_hirl(line)], ids=str)
@pytest.mark.usefixtures("inside")
def test_every_command_has_the_options_that_are_shown(line: Line) -> None:
    name, *rest = arguments(line)
    parse(name, rest)


def test_a_command_with_a_wrong_option_is_noticed() -> None:
    with pytest.raises(ValueError, match="there is no option --speed"):
        parse("pretrain", ["photos/", "--speed", "3"])


@pytest.mark.parametrize("line", [line for line in inline_commands() if is_hirl(line)], ids=str)
def test_options_within_sentences_exist(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    name, *rest = arguments(line)
    if name.startswith("--"):
        return
    chosen = [word for word in rest if word in ("DINO", "small/dino")]
    with pytest.raises(SystemExit):
        parse(name, ["--config", "small/dino", "--help"] if chosen and name == "pretrain" else ["--help"])
    known = capsys.readouterr().out
    for option in (word.partition("=")[0] for word in rest if word.startswith("--")):
        assert option in known, f"{line}: {option}"


def small_form(line: Line) -> list[str] | None:
    """The command for a few images; None if it is one of those that other tests run."""
    parts = arguments(line)
    if any(large in word for word in parts for large in LARGE):
        return None
    text = " ".join(parts)
    for large, small in FEWER.items():
        text = text.replace(large, small)
    if parts[0] != "pretrain":
        return text.split()
    extra = ["--epochs", "2", "--image_size", "32", "--batch_size", "16", "--workers", "0"]
    if "--method.lr" in parts:
        extra += SMALL_DINO
    if "simclr.SimCLR" in parts:
        extra += ["--method.backbone", "resnet10t"]
    return [*text.split(), *extra]


def once_per_kind(lines: list[Line]) -> list[Line]:
    """One line of each command and set of options: the others differ in values only."""
    kinds: dict[tuple[str, ...], Line] = {}
    for line in lines:
        parts = small_form(line)
        if parts is not None:
            options = {word for word in parts if word.startswith("--")} - (ALIKE if parts[0] == "pretrain" else set())
            target = parts[parts.index("--to") + 1 :][:1] if "--to" in parts else []
            kinds.setdefault((parts[0], *sorted(options), *target), line)
    return list(kinds.values())


@pytest.mark.parametrize("line", once_per_kind([line for line in LINES if is_hirl(line)]), ids=str)
def test_short_commands_run(line: Line, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = small_form(line)
    assert parts is not None
    if parts[0] == "pretrain":
        parts += ["--out", str(inside / "runs" / f"new-{abs(hash(line.parts))}"), "--accelerator", "cpu"]
    if "--out" in parts:
        out = inside / parts[parts.index("--out") + 1]
        if out.is_file():
            out.unlink()
        elif parts[0] == "export":
            shutil.rmtree(out, ignore_errors=True)
    status = main(parts)
    assert status == 0, capsys.readouterr().err
