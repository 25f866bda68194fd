"""`hirl embed`: write features, z⁰…zᴸ and paths of images to a file or to parts in a folder."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hirl.cli.collection import ENCODER, method_option
from hirl.cli.command import Command, check_new
from hirl.config import NonNegativeInt, PositiveInt
from hirl.config.parser import Parser


def options(parser: Parser) -> None:
    from hirl.explore.embed import embed
    from hirl.features.feature_files import WRITTEN

    parser.add_argument("subject", help=ENCODER)
    parser.add_options(embed, skip={"subject", "out", "method", "quiet"})
    about = f"The file to write, {' or '.join(WRITTEN)}; or a folder for parts in half precision."
    parser.add_argument("--out", type=Path, required=True, help=about)
    about = "Number of parts in a folder; by default one per 50,000 images. Parallel commands share the work."
    parser.add_argument("--parts", type=PositiveInt, help=about)
    parser.add_argument("--ray", type=NonNegativeInt, default=0, help="Number of Ray workers that write parts.")
    method_option(parser)
    parser.add_argument("--overwrite", action="store_true", help="Replace the file at --out.")


def run(config: Namespace) -> None:
    from hirl.explore.embed import embed
    from hirl.explore.embed_parts import embed_parts
    from hirl.features.feature_files import check_target

    options = {name: value for name, value in vars(config).items() if name != "overwrite"}
    if not config.out.suffix or config.out.is_dir():
        parts = embed_parts(**options)
        print(f"{sum(parts.rows):,} images written to {len(parts.rows)} parts in {config.out}")
        return
    if options.pop("parts") is not None or options.pop("ray"):
        raise ValueError(f"--parts and --ray write a folder of parts, but --out is {str(config.out)!r}: name a folder")
    check_target(config.out)
    check_new(config.out, overwrite=config.overwrite)
    arrays = embed(**options)
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    print(f"{shapes} written to {config.out}")


EMBED = Command(
    "embed",
    "write features, z0 … zL and paths of images to a file",
    options,
    run,
    examples={
        "hirl embed runs/photos-dino-hirl-0 --out z.npz": "features, z0 … zL and paths of a run's images",
    },
    guide="evaluation.md",
)
