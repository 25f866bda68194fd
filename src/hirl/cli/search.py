"""`hirl search`: the images most similar to one, by z⁰ or a coarser representation."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from hirl.cli.collection import collection_options, open_from_options, output_folder, page_address
from hirl.cli.command import Command
from hirl.cli.with_start import with_start, with_start_option
from hirl.config import NonNegativeInt, PositiveInt
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.data import ImageSet
    from hirl.explore.collection import Collection
    from hirl.explore.gallery_page import Group
    from hirl.explore.search import FoundImages


def options(parser: Parser) -> None:
    collection_options(parser, subject="A folder of images, a run folder, or a checkpoint in one.", tree=False)
    parser.add_argument("query", help="An image file.")
    parser.add_argument(
        "--level",
        type=NonNegativeInt,
        help="Compare z0 (the finest), z1 … or zL (the coarsest); by default each of them that differs from z0.",
    )
    parser.add_argument("--count", type=PositiveInt, default=24, help="Images to find per level.")
    parser.add_argument("--out", type=Path, help="The page's folder; by default search/ in the run's folder.")
    with_start_option(parser)


def run(config: Namespace) -> None:
    import json

    from hirl.explore.gallery_page import write_gallery
    from hirl.explore.page import page_folder
    from hirl.explore.search import (
        NO_ENCODER,
        different_levels,
        open_query,
        query_representations,
        search,
        search_report,
    )
    from hirl.explore.subjects import subject_kind
    from hirl.terminal.progress import progress_bars

    folder = output_folder(config, "search")
    if subject_kind(config.subject) == "features":
        raise ValueError(NO_ENCODER)
    open_query(config.query, channels=3)  # reports a wrong file name before the features are computed
    collection = open_from_options(config)
    query = open_query(config.query, channels=collection.images.channels)
    z = query_representations(collection, query, method=config.method, device=config.device)
    levels = different_levels(collection) if config.level is None else [config.level]
    found = search(collection, z, levels, count=config.count, without=Path(config.query))
    report = search_report(collection, config.query, z, found)
    with progress_bars() as progress, page_folder(folder) as aside:
        shown, facts = _groups(collection, query, found), [f"among {len(collection):,} images of {collection.data}"]
        title, heading = f"{collection.name} · search", Path(config.query).name
        write_gallery(
            aside, folder, shown, title=title, heading=heading, facts=[*facts, "by cosine"], progress=progress
        )
        (aside / "search.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    for one in report["levels"]:
        near = ", ".join(f"{image['file']} ({image['cosine']:.3f})" for image in one["images"][:3])
        print(f"{'nearest' if collection.run is None else 'z' + str(one['level'])}: {near}")
    print(f"Page and search.json written to {folder}. {page_address(folder)}")


def _groups(collection: Collection, query: ImageSet, found: list[FoundImages]) -> list[Group]:
    from hirl.explore.gallery_page import Group, Tile

    groups = [Group("Query", [Tile((query, 0), Path(query.path(0)).name, "query")])]
    for one in found:
        # z0 is the method's own representation and belongs to no level of the tree: z1 belongs to level 0.
        coarser = f"trained with level {one.level - 1} of the tree"
        finest = "by the features" if collection.run is None else "as fine as the method tells images apart"
        tiles = [
            Tile((collection.images, image), f"{cosine:.3f}  {Path(collection.images.path(image)).name}")
            for image, cosine in zip(one.images, one.similarity, strict=True)
        ]
        heading = "Nearest" if collection.run is None else f"Nearest in z{one.level}"
        groups.append(Group(heading, tiles, finest if one.level == 0 else coarser))
    return groups


SEARCH = Command(
    "search",
    "find the images most similar to one, at any level of representation",
    options,
    with_start("search", run, level=None),
    examples={"hirl search photos/ cat.jpg": "the images most similar to one"},
    guide="explore.md#search",
)
