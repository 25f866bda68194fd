"""`hirl demo`: training, comparison and a tree page on built-in pictures, in a few minutes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hirl.cli.command import Command
from hirl.config import NonNegativeInt, PositiveInt
from hirl.config.parser import Parser


def options(parser: Parser) -> None:
    parser.add_argument("--out", type=Path, default=Path("demo"), help="Folder for pictures, runs and page.")
    parser.add_argument("--images", type=PositiveInt, default=6000, help="Number of pictures to draw and train on.")
    parser.add_argument("--epochs", type=PositiveInt | None, default=None, help="Epochs; by default the recipe's.")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of every random draw in training.")


def run(config: Namespace) -> None:
    from hirl.explore.demo import demo

    demo(**vars(config))


DEMO = Command(
    "demo",
    "draw pictures, train with and without HIRL, and write a tree page",
    options,
    run,
    examples={"hirl demo": "built-in pictures with and without HIRL, in minutes"},
    guide="index.md",
)
