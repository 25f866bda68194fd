"""`hirl tsne`: a map of features, as a figure and as a page that shows the image under the pointer."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hirl.cli.collection import collection_options, open_from_options, output_folder, page_address
from hirl.cli.command import Command
from hirl.config import NonNegativeInt, PositiveFloat, PositiveInt
from hirl.config.parser import Parser

if TYPE_CHECKING:
    import numpy as np

    from hirl.explore.collection import Collection


def options(parser: Parser) -> None:
    collection_options(parser)
    parser.add_argument("--against", help="A second run or features of the same images, to show beside the first.")
    parser.add_argument(
        "--algorithm", type=Literal["tsne", "umap"], default="tsne", help="umap needs the library umap-learn."
    )
    parser.add_argument(
        "--level", type=NonNegativeInt, help="Map z0 (the finest), z1 …; by default the encoder's pooled features."
    )
    parser.add_argument(
        "--colour",
        help="What to colour by: label-0, label-1 … or tree-0 …; by default label-0, else the coarsest nodes.",
    )
    parser.add_argument("--classes", type=PositiveInt, default=20, help="With labels: classes to show, from the first.")
    parser.add_argument("--per_class", type=PositiveInt, default=2000, help="With labels: images per class, at most.")
    parser.add_argument("--points", type=PositiveInt, default=10_000, help="Without labels: images to show, at most.")
    parser.add_argument(
        "--perplexity", type=PositiveFloat, default=30.0, help="Effective number of neighbours, for t-SNE."
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of the choice of images and of the map.")
    parser.add_argument("--out", type=Path, help="The folder to write to; by default tsne/ in the run's folder.")


def run(config: Namespace) -> None:
    import torch

    from hirl.explore.page import page_folder
    from hirl.explore.tsne import (
        choose_points,
        colourings,
        find_colouring,
        fitting_perplexity,
        map_features,
        place_points,
    )
    from hirl.explore.tsne_figure import write_map_figure
    from hirl.explore.tsne_page import write_map_page
    from hirl.terminal.progress import progress_bars

    folder = output_folder(config, config.algorithm)
    first = open_from_options(config)
    if first.tree_note:
        print(first.tree_note)
    find_colouring(colourings(first, torch.arange(len(first))), config.colour)
    collections = [first] if config.against is None else [first, _other(config, first)]
    classes, per_class, seed = config.classes, config.per_class, config.seed
    points = choose_points(first, classes=classes, per_class=per_class, points=config.points, seed=seed)
    fitting = fitting_perplexity(config.perplexity, len(points))
    if config.algorithm == "tsne" and 1 < fitting < config.perplexity:
        print(f"Perplexity {fitting:.3g} instead of {config.perplexity:g}: the limit is a third of the other images")
    panels = []
    for collection in collections:
        features = map_features(collection, config.level)[points]
        print(f"Computing the {config.algorithm} map of {len(points):,} images of {collection.name}", flush=True)
        places = place_points(features, algorithm=config.algorithm, perplexity=config.perplexity, seed=seed)
        panels.append((collection.name, places))
    found = colourings(first, points)
    main = find_colouring(found, config.colour)
    ordered = [main, *(one for one in found if one is not main)]
    name = config.algorithm
    with progress_bars() as progress, page_folder(folder) as aside:
        write_map_page(aside, folder, first, points, panels, ordered, algorithm=name, progress=progress)
        for kind in ("png", "svg"):
            write_map_figure(aside / f"{name}.{kind}", panels, main, algorithm=name)
        _write_points(aside / "points.csv", first, points.tolist(), [places for _, places in panels])
    print(f"Page, {name}.png, {name}.svg and points.csv written to {folder}. {page_address(folder)}")


def _other(config: Namespace, first: Collection) -> Collection:
    """The collection of --against; it must have the same images as the first."""
    from hirl.explore.subjects import subject_kind

    data, split = config.data, config.split
    if data is None and subject_kind(config.against) == "run":
        if subject_kind(config.subject) == "images":
            data = config.subject
        elif first.run is not None:
            data, split = first.run.config["data"], split or first.run.config.get("split")
    other = open_from_options(
        config, subject=config.against, data=data, split=split, tree=None, levels=None, encoder=None
    )
    if other.paths != first.paths:
        raise ValueError(f"{config.against} must have the same images as {config.subject}: name them with --data")
    return other


def _write_points(file: Path, collection: Collection, points: list[int], panels: list[np.ndarray]) -> None:
    from hirl.explore.file_lists import write_list

    rows: list[dict[str, Any]] = []
    for place, index in enumerate(points):
        row: dict[str, Any] = {"file": collection.images.path(index), "row": int(collection.rows[index])}
        for number, places in enumerate(panels):
            row |= {f"x_{number}": round(float(places[place, 0]), 5), f"y_{number}": round(float(places[place, 1]), 5)}
        rows.append(row)
    write_list(file, rows)


TSNE = Command(
    "tsne",
    "draw a map of features (t-SNE or UMAP), coloured by label or tree",
    options,
    run,
    examples={"hirl tsne photos/": "a map of the images, as a figure and a page"},
    guide="explore.md#maps",
)
