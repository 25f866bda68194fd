"""`hirl demo`: a tree of handwritten digits."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt

from hirl.cli.command import Command


def demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of the starting rows of the tree.")


def demo(config: Namespace) -> None:
    from hirl.explore.demo import digits_demo

    digits_demo(seed=config.seed)


DEMO = Command("demo", "build and print a tree of the handwritten digits of scikit-learn", demo_options, demo)
