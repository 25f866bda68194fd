"""`hirl tune`: search for the levels and negatives with the lowest joint loss on held-out images."""

from __future__ import annotations

from argparse import Namespace

from hirl.cli.command import Command
from hirl.cli.pretrain import check_data, scale_start
from hirl.config.parser import Parser
from hirl.config.signatures import parameters
from hirl.config.values import NULL


def options(parser: Parser) -> None:
    from hirl.studies.tune import tune

    if parser.line.last_values().get("hierarchy") in NULL:
        raise ValueError("--hierarchy is null, but tune searches for the settings of a hierarchy: leave the option out")
    # Each choice is a run of its own from the start.
    parser.add_config_options(tune, positional="data", only=parameters(tune).keys() - {"stage_one", "fork_at"})
    parser.post_process = scale_start


def run(config: Namespace) -> None:
    from hirl.studies.tune import tune

    check_data(config, "tune")
    best = tune(**vars(config))
    sizes = " ".join(map(str, best.levels or ()))
    print(f"Lowest joint loss with: --hierarchy.levels {sizes} --hierarchy.negatives {best.negatives}")


TUNE = Command(
    "tune",
    "search for levels and negatives as the paper does",
    options,
    run,
    examples={"hirl tune photos/ --config small/dino": "which levels and negatives suit the images"},
    guide="training.md#search-for-levels-and-negatives",
)
