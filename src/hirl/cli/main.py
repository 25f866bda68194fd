"""The `hirl` command: reads the line, calls the package, and turns a user's mistake into one sentence."""

from __future__ import annotations

import re
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from hirl.cli.cluster import CLUSTER, DEMO
from hirl.cli.compare import COMPARE
from hirl.cli.evaluate import EMBED, EVALUATE
from hirl.cli.images import IMAGES
from hirl.cli.pretrain import PRETRAIN, STOPPED
from hirl.cli.runs import RUNS, SHOW
from hirl.cli.tune import TUNE
from hirl.cli.views import VIEWS

COMMANDS = {
    command.name: command
    for command in (DEMO, PRETRAIN, EVALUATE, COMPARE, TUNE, EMBED, SHOW, RUNS, IMAGES, VIEWS, CLUSTER)
}
MISTAKE = 2

ABOUT = """hirl learns hierarchical image representations from unlabelled pictures.

examples:
  hirl demo                                            a tree of handwritten digits, in seconds
  hirl pretrain photos/ --method DINO --epochs 100     learn from a folder of images; the same command continues
  hirl pretrain photos/ --method MoCoV2 --hierarchy null   the method alone, as a baseline
  hirl evaluate runs/photos-dino-hirl-0 knn linear     how good its encoder is, where there are labels
  hirl compare shapes small/moco_v2 small/dino         base and HIRL side by side, in tables
  hirl tune photos/ --config small/dino                which levels and negatives suit the images
  hirl embed runs/photos-dino-hirl-0 --out z.npz       features, z0 … zL and paths of its images, for use elsewhere
  hirl show runs/photos-dino-hirl-0                    a run as a page of text
  hirl images photos/ --out sheet.png                  what is in a folder, and a contact sheet of it
  hirl views photos/ --method DINO --out views.png     the views that a method trains on
  hirl cluster features.npy --out tree.safetensors     a tree over features of your own, levels fitted to their number
  hirl cluster features.npy --levels 3000 300 30 --out tree.safetensors
  hirl cluster --help                                  all there is to say to one command
"""


class Parser(ArgumentParser):
    """A parser whose errors are a user's mistake: one sentence, no usage text."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(in_words(message)) from ex


# How the parser says things, and how a user would: what a command's argument is called, what a number must be.
REWORDED = (
    (r"^.*Union subtypes .*?Errors: - (.*?)(?: - Expected a <class 'NoneType'>.*)?(?: Given value type:.*)?$", r"\1"),
    (
        r"^the following arguments are required: (?:\w+\.)?(features|source|subject|run|data)(?:, .*)?$",
        r"the argument \1 is missing",
    ),
    (r"^the following arguments are required: (?:\w+\.)?(\w+)$", r"the option --\1 is missing"),
    (r"^Parser key \"([^\"]+)\"(?: element \d+)?:", r"--\1:"),
    (
        r"Not of type PositiveInt: .*?('[^']*'|-?[\d.]+)(?: does not conform.*)?$",
        r"must be a whole number of at least 1, not \1",
    ),
    (
        r"Not of type NonNegativeInt: .*?('[^']*'|-?[\d.]+)(?: does not conform.*)?$",
        r"must be a whole number of at least 0, not \1",
    ),
    (
        r"Not of type Share: .*?('[^']*'|-?[\d.]+|nan)(?: does not conform.*)?$",
        r"must be a share of at least 0 and below 1, not \1",
    ),
    (r"<class '([\w.]+)'>", r"\1"),
    (r"Expected an? (?:typing\.)?(.*?)\. Got value: (.*)$", r"expected \1, not \2"),
)


def in_words(message: str) -> str:
    """A parser's message on one line, in a user's words."""
    line = " ".join(message.split())
    for said, meant in REWORDED:
        line = re.sub(said, meant, line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # wherever it stands
    if not debug:
        warnings.showwarning = _warn
    words = [word for word in words if word != "--debug"]
    try:
        said = next((word for word in words if not word.startswith("-")), None)
        if said in COMMANDS:
            words = COMMANDS[said].prepared(words)
        parser = _parser(said)
        config = parser.parse_args(words)
        if config.version:
            import hirl

            print(f"hirl {hirl.__version__}")
        elif config.subcommand is None:
            parser.print_help()
        else:
            COMMANDS[config.subcommand].run(parser.instantiate(config)[config.subcommand])
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"hirl: {in_words(str(error))}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("hirl: stopped", file=sys.stderr)
        return STOPPED
    return 0


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as a line, without the place in the code it comes from."""
    print(f"hirl: warning: {message}", file=sys.stderr)


def _parser(said: str | None) -> ArgumentParser:
    """With the options of the command that was said; those of others stay unread, for they import much."""
    parser = Parser(
        prog="hirl",
        description=ABOUT,
        formatter_class=RawDescriptionHelpFormatter,
        version=None,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show where a mistake was found, as a traceback")
    commands = parser.add_subcommands(required=False, title="commands")
    for command in COMMANDS.values():
        child = Parser(description=command.about, allow_abbrev=False)
        if command.name == said:
            command.options(child)
        commands.add_subcommand(command.name, child, help=command.about)
    return parser


if __name__ == "__main__":
    sys.exit(main())
