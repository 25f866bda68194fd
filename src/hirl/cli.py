"""The `hirl` command: reads the line, calls the package, and turns a user's mistake into one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

MISTAKE = 2

ABOUT = """hirl learns hierarchical image representations from unlabelled pictures.

examples:
  hirl demo                                            a tree of handwritten digits, in seconds
  hirl cluster features.npy --out tree.safetensors     a tree over features of your own, levels fitted to their number
  hirl cluster features.npy --levels 3000 300 30 --out tree.safetensors
  hirl cluster --help                                  all there is to say to one command
"""


class Parser(ArgumentParser):
    """A parser whose errors are a user's mistake: one sentence, no usage text."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(" ".join(message.split())) from ex


@dataclass(frozen=True)
class Command:
    name: str
    about: str
    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]


def cluster_options(parser: ArgumentParser) -> None:
    parser.add_argument("features", type=Path, help="a .npy file of shape (N, D), one row an image, of a float type")
    parser.add_argument("--out", type=Path, required=True, help="where the tree goes, a .safetensors file")
    parser.add_argument(
        "--levels", type=PositiveInt, nargs="+", help="nodes at each level, fine to coarse; by default fitted to N"
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the starting rows")
    parser.add_argument("--iterations", type=PositiveInt, default=20, help="Lloyd steps a level at most")
    parser.add_argument("--restarts", type=PositiveInt, default=1, help="take the best of so many starts")
    parser.add_argument(
        "--tolerance", type=ClosedUnitInterval, default=0.002, help="stop when no more than this share of rows moves"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def cluster(config: Namespace) -> None:
    import numpy as np

    from hirl.files import check_writable
    from hirl.hierarchy.kmeans import hierarchical_kmeans
    from hirl.hierarchy.levels import suggest_levels
    from hirl.show import kmeans_progress, level_table

    check_writable(config.out)
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"{str(config.out)!r} exists already: name another --out, or say --overwrite")
    if not config.features.is_file():
        raise ValueError(f"there is no file {str(config.features)!r}: the features are a .npy file of shape (N, D)")
    try:
        features = np.load(config.features, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{str(config.features)!r} is no .npy file of numbers: {error}") from error
    if not isinstance(features, np.ndarray) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, np.ndarray) else "several arrays"
        raise ValueError(f"{str(config.features)!r} must hold one array of shape (N, D), not {shape}")
    levels: Sequence[int] | None = config.levels
    if levels is None:
        suggested = suggest_levels(len(features))
        print(f"levels {tuple(suggested)}: {suggested.why}")
        levels = suggested
    with kmeans_progress(len(features), levels, config.restarts * (config.iterations + 1)) as progress:
        tree = hierarchical_kmeans(
            features,
            tuple(levels),
            seed=config.seed,
            iterations=config.iterations,
            restarts=config.restarts,
            tolerance=config.tolerance,
            progress=progress,
        )
    tree.save(config.out)
    level_table(tree)
    print(f"tree of {len(tree.leaves):,} images written to {config.out}")


def demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the tree's starting rows")


def demo(config: Namespace) -> None:
    from hirl.demo import digits_demo

    digits_demo(seed=config.seed)


COMMANDS = (
    Command("demo", "builds and prints a tree over the handwritten digits of scikit-learn", demo_options, demo),
    Command("cluster", "builds a tree of prototypes over features of your own", cluster_options, cluster),
)


def _parser() -> ArgumentParser:
    parser = Parser(prog="hirl", description=ABOUT, formatter_class=_formatter(), version=None)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show where a mistake was found, as a traceback")
    commands = parser.add_subcommands(required=False, title="commands")
    for command in COMMANDS:
        child = Parser(description=command.about)
        command.options(child)
        commands.add_subcommand(command.name, child, help=command.about)
    return parser


def _formatter() -> type:
    from argparse import RawDescriptionHelpFormatter

    return RawDescriptionHelpFormatter


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # wherever it stands
    parser = _parser()
    try:
        config = parser.parse_args([word for word in words if word != "--debug"])
        if config.version:
            import hirl

            print(f"hirl {hirl.__version__}")
        elif config.subcommand is None:
            parser.print_help()
        else:
            command = next(command for command in COMMANDS if command.name == config.subcommand)
            command.run(config[config.subcommand])
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"hirl: {error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("hirl: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
