"""`hirl embed`: features, z⁰…zᴸ and paths of images, in a file."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from hirl.cli.command import Command, check_new
from hirl.config.parser import Parser


def embed_options(parser: Parser) -> None:
    from hirl.explore.embed import embed

    about = "A run folder or a checkpoint in it, a file of weights, a timm name, or torchvision:NAME."
    parser.add_argument("subject", help=about)
    parser.add_options(embed, skip={"subject", "out", "method", "quiet"})
    parser.add_argument("--out", type=Path, required=True, help="The file to write, .npz or .parquet.")
    parser.add_argument("--method", help="The class of the run's method as package.module.Class, if not part of hirl.")
    parser.add_argument("--overwrite", action="store_true", help="Replace the file at --out.")


def run_embed(config: Namespace) -> None:
    from hirl.explore.embed import check_target, embed

    check_target(config.out)
    check_new(config.out, overwrite=config.overwrite)
    options = {name: value for name, value in vars(config).items() if name != "overwrite"}
    arrays = embed(**options)
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    print(f"{shapes} written to {config.out}")


EMBED = Command("embed", "write features, z0 … zL and paths of images to a file", embed_options, run_embed)
