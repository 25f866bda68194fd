"""`hirl duplicates`: groups of exact and near duplicates, and which file of each group to keep."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hirl.cli.collection import collection_options, open_from_options, output_folder, page_address
from hirl.cli.command import Command, check_new
from hirl.cli.with_start import with_start, with_start_option
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.explore.collection import Collection
    from hirl.explore.duplicate_lists import Rows
    from hirl.explore.duplicates import DuplicateGroup
    from hirl.terminal.progress import Progress


def options(parser: Parser) -> None:
    collection_options(parser, tree=False)
    parser.add_argument(
        "--threshold", type=float, help="Cosine of features from which images may be copies; by default measured."
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="The folder to write to, by default duplicates/ in the run's folder; or a file for the list only: .csv, "
        ".json or .parquet for all groups, .txt for the files to drop.",
    )
    with_start_option(parser)
    parser.add_argument("--overwrite", action="store_true", help="Replace existing lists whose content differs.")


def run(config: Namespace) -> None:
    from hirl.explore.copy_threshold import measure_threshold
    from hirl.explore.duplicate_lists import COLUMNS, dropped, duplicate_lists, duplicate_rows
    from hirl.explore.duplicates import INDISTINCT, Kind, check_threshold, find_duplicates
    from hirl.explore.file_lists import KINDS, check_list, write_list
    from hirl.terminal.progress import progress_bars

    if config.threshold is not None:
        check_threshold(config.threshold)
    only_list = config.out is not None and config.out.suffix.lower() in KINDS
    if only_list:
        check_list(config.out)
        check_new(config.out, overwrite=config.overwrite)
    else:
        folder = output_folder(config, "duplicates")
    collection = open_from_options(config)
    if config.threshold is None:
        with progress_bars() as progress:
            threshold = measure_threshold(collection, device=config.device, progress=progress)
        why = (
            f"Threshold {threshold:.4f}: 95 % of mildly altered copies (recompressed, halved in size, brightened by "
            "10 %, cropped by 2 %) have features of at least this cosine"
        )
    else:
        threshold, why = config.threshold, f"Threshold {config.threshold} as given"
    print(why)
    with progress_bars() as progress:
        measured = config.threshold is None  # or the threshold as given decides whether features tell images apart
        groups, links, by_features = find_duplicates(collection, threshold, fall_back=measured, progress=progress)
        if not by_features:
            why = f"Copies are found by files and details alone, {INDISTINCT}"
        rows = duplicate_rows(collection, groups)
        lists = duplicate_lists(rows)
        if not only_list:
            about = f"{why}. {_rules(by_features=by_features)}"
            _write_page(collection, groups, lists, folder, about, overwrite=config.overwrite, progress=progress)
    if not by_features:
        print(why)
    kinds: list[str] = [copy.kind for group in groups for copy in group.copies]
    alone = sum(copy.kind == "near" and copy.by == "details" for group in groups for copy in group.copies)
    counts = ", ".join(f"{kind} {kinds.count(kind):,}" for kind in get_args(Kind))
    counts += f", {alone:,} of these by details alone" if alone else ""
    several = "" if len(groups) == 1 else "s"
    print(
        f"{len(kinds):,} of {len(collection):,} images repeat another one ({counts}), in {len(groups):,} group{several}"
    )
    if links:
        print(f"{len(links):,} of them left out: links to the file of another image, or other paths to it")
    if only_list:
        write_list(config.out, dropped(rows) if config.out.suffix.lower() == ".txt" else rows, COLUMNS)
        print(f"Written to {config.out}")
        return
    note = " and drop.txt" if lists["drop.txt"] is not None else " (no drop.txt: a file name contains a line break)"
    print(f"Page, groups.csv, groups.json{note} written to {folder}. {page_address(folder)}")


def _rules(*, by_features: bool) -> str:
    """What makes near duplicates, for the page."""
    from hirl.explore.duplicates import AGREEMENT, CERTAIN

    certain = f"agree in their details by at least {CERTAIN}"
    rule = f"Near duplicates {certain}."
    if by_features:
        rule = (
            f"Near duplicates reach it and agree in their details by at least {AGREEMENT}; or they {certain}, whatever "
            "the cosine, and show that figure instead of it."
        )
    return f"{rule} One image of each group is marked keep."


def _write_page(
    collection: Collection,
    groups: list[DuplicateGroup],
    lists: dict[str, Rows | None],
    folder: Path,
    about: str,
    *,
    overwrite: bool,
    progress: Progress,
) -> None:
    """Write the page of the groups, with the lists in the same folder."""
    from hirl.explore.duplicate_lists import COLUMNS, duplicate_gallery
    from hirl.explore.file_lists import check_unchanged, write_list
    from hirl.explore.gallery_page import write_gallery
    from hirl.explore.page import page_folder

    if not overwrite:
        for file, rows in lists.items():
            check_unchanged(folder / file, rows, COLUMNS)
    copies = sum(len(group.copies) for group in groups)
    facts = [f"{len(groups):,} groups", f"{copies:,} of {len(collection):,} images are copies"]
    title, shown = f"{collection.name} · duplicates", duplicate_gallery(collection, groups)
    with page_folder(folder, *lists) as aside:
        write_gallery(
            aside, folder, shown, title=title, heading="Duplicates", facts=facts, about=about, progress=progress
        )
        for file, rows in lists.items():
            if rows is not None:
                write_list(aside / file, rows, COLUMNS)


DUPLICATES = Command(
    "duplicates",
    "group exact and near duplicates, and list those to drop",
    options,
    with_start("duplicates", run),
    examples={"hirl duplicates photos/": "copies, and which to keep"},
    guide="explore.md#duplicates",
)
