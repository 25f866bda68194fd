"""`hirl pretrain`: the arguments of `hirl.pretrain`, of its method and of its hierarchy as options."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hirl.cli.command import Command
from hirl.config.parser import Parser


def options(parser: Parser) -> None:
    from hirl.train.pretrain import pretrain

    parser.add_config_options(pretrain, positional="data")
    has_arguments = any(name.startswith("method.") for name in parser.line.options)

    def post_process(recipe: Mapping[str, Any], values: Namespace) -> None:
        if values.method is not None and not has_arguments and not any(name.startswith("method.") for name in recipe):
            values.method = type(values.method)  # the class only: its arguments are chosen for the images
        if not leave_start_open(recipe, values, parser):
            scale_start(recipe, values)

    parser.post_process = post_process


def leave_start_open(recipe: Mapping[str, Any], values: Namespace, parser: Parser) -> bool:
    """Drop the recipe's epoch of the first tree, which assumes random weights; return whether it was dropped."""
    from hirl.train.start import AUTO, open_heads

    given = parser.line.options
    if values.hierarchy is None or values.method is None or "hierarchy.start_epoch" in given:
        return False
    if "encoder" not in given or values.encoder in (None, AUTO):
        return False
    if recipe.get("hierarchy.start_epoch") is None or open_heads(values.encoder, values.method) is None:
        return False
    values.hierarchy = replace(values.hierarchy, start_epoch=None)
    return True


def scale_start(recipe: Mapping[str, Any], values: Namespace) -> None:
    """If epochs differ from the recipe's, scale the epoch of the first tree with them, unless it is given."""
    start, epochs = recipe.get("hierarchy.start_epoch"), recipe.get("epochs")
    if values.hierarchy is None or start is None or epochs in (None, values.epochs):
        return
    if values.hierarchy.start_epoch == start:
        values.hierarchy = values.hierarchy.for_epochs(epochs, values.epochs)
        scaled = values.hierarchy.start_epoch
        print(f"The first tree is built after epoch {scaled} of {values.epochs}; in the recipe {start} of {epochs}")


def run(config: Namespace) -> None:
    from hirl.train.pretrain import pretrain

    check_data(config, "pretrain")
    pretrain(**vars(config))


def check_data(config: Namespace, command: str) -> None:
    if config.data is None:
        raise ValueError(f"{command} needs the images to train on: hirl {command} FOLDER")


PRETRAIN = Command(
    "pretrain",
    "learn a hierarchical representation from images",
    options,
    run,
    examples={
        "hirl pretrain photos/": "learn from the images; the same command continues",
        "hirl pretrain photos/ --method DINO --hierarchy null": "the method alone, as a baseline",
    },
    guide="training.md",
)
