"""`hirl demo`: what the project does, on built-in pictures, in a few minutes."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from hirl.cli.command import Command
from hirl.cli.pretrain import exit_if_stopped


def demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("demo"), help="Folder for pictures, runs and page.")
    parser.add_argument("--images", type=PositiveInt, default=6000, help="Number of pictures to draw and train on.")
    parser.add_argument("--epochs", type=PositiveInt | None, default=None, help="Epochs; by default the recipe's.")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of every random draw in training.")


def run_demo(config: Namespace) -> None:
    from hirl.explore.demo import demo

    with exit_if_stopped():
        # plain numbers, as config.yaml holds them
        epochs = None if config.epochs is None else int(config.epochs)
        demo(config.out, images=int(config.images), epochs=epochs, seed=int(config.seed))


DEMO = Command("demo", "draw pictures, train with and without HIRL, and write a tree page", demo_options, run_demo)
