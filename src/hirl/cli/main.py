"""The `hirl` command: runs one of its commands and reports a user's mistake in one sentence."""

from __future__ import annotations

import difflib
import os
import select
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, TextIO

from hirl.cli.bench import BENCH
from hirl.cli.cluster import CLUSTER
from hirl.cli.compare import COMPARE
from hirl.cli.demo import DEMO
from hirl.cli.duplicates import DUPLICATES
from hirl.cli.embed import EMBED
from hirl.cli.evaluate import EVALUATE
from hirl.cli.export import EXPORT
from hirl.cli.images import IMAGES
from hirl.cli.pretrain import PRETRAIN
from hirl.cli.runs import RUNS
from hirl.cli.sample import SAMPLE
from hirl.cli.search import SEARCH
from hirl.cli.show import SHOW
from hirl.cli.tree import TREE
from hirl.cli.tsne import TSNE
from hirl.cli.tune import TUNE
from hirl.cli.views import VIEWS
from hirl.config.parser import Parser
from hirl.freed_memory import keep_freed_memory
from hirl.signals import Stopped

# In the order of `hirl --help`: what needs no training comes first.
COMMANDS = {command.name: command for command in (
    TREE, SEARCH, DUPLICATES, SAMPLE, TSNE, PRETRAIN, SHOW, RUNS, EVALUATE, COMPARE, TUNE, EMBED, EXPORT, IMAGES, VIEWS,
    CLUSTER, DEMO, BENCH,
)}  # fmt: skip
MISTAKE = 2
STOPPED = 130  # a shell's exit code for SIGINT
UNREAD = 141  # and for SIGPIPE: the reader of a pipe has closed it, as in `hirl runs | head -1`

EXAMPLE_WIDTH = 52
ABOUT = """usage: hirl COMMAND [options]

hirl learns hierarchical image representations from unlabelled images.

examples:
{examples}

commands:
{commands}

options:
  --help     show this text, or with a command all of its options: hirl pretrain --help
  --version  print the version
  --debug    show a traceback with an error"""


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args  # anywhere on the line
    args = [arg for arg in args if arg != "--debug"]
    if not debug:
        warnings.showwarning = _warn
    try:
        _run(args)
        sys.stdout.flush()
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
            return UNREAD
        if debug:
            raise
        print("hirl:", " ".join(line.strip() for line in _message(error).splitlines()), file=sys.stderr)
        return MISTAKE
    except Stopped:  # has been reported where it was raised
        return STOPPED
    except KeyboardInterrupt:
        print("hirl: stopped", file=sys.stderr)
        return STOPPED
    return 0


def _run(args: Sequence[str]) -> None:
    name = args[0] if args else "--help"
    if name in ("--help", "-h"):
        print(help_text())
    elif name == "--version":
        from importlib.metadata import version

        print(f"hirl {version('hirl')}")
    elif name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(COMMANDS)}"
        raise ValueError(f"there is no command {name!r}: {hint}")
    else:
        from hirl.processes import notice_lost_processes

        config = parse(name, args[1:])
        keep_freed_memory()
        with notice_lost_processes():
            COMMANDS[name].run(config)


def help_text() -> str:
    """What `hirl --help` prints."""
    lines = [line for command in COMMANDS.values() for line in command.examples.items()]
    examples = "\n".join(f"  {line:<{EXAMPLE_WIDTH}}  {gives}" for line, gives in lines)
    commands = "\n".join(f"  {command.name:<10} {command.about}" for command in COMMANDS.values())
    return ABOUT.format(examples=examples, commands=commands)


def _is_unread(output: TextIO) -> bool:
    """Whether the reader has closed the pipe. If so, drop buffered output, or Python reports an error at exit."""
    poll = select.poll()
    poll.register(output, 0)
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
    return True


def _message(error: ValueError | OSError) -> str:
    """The error as a sentence. Messages of an OSError have a number and separate parts."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"cannot read or write {os.fsdecode(error.filename)!r}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)


def parse(name: str, args: Sequence[str]) -> Namespace:
    """The values of a command's options, without running the command; `--help` prints and exits."""
    command = COMMANDS[name]
    about = f"{command.about[0].upper()}{command.about[1:]}."
    parser = Parser(prog=f"hirl {name}", description=about, argv=args)
    command.options(parser)
    return parser.read()


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without file and line number."""
    print(f"hirl: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
