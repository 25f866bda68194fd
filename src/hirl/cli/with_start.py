"""`--with_start`: a command's page of an adapted run beside that of the encoder which the run started from."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hirl.cli.collection import page_address
from hirl.config.parser import Parser

Pages = Callable[[Namespace], None]


def with_start_option(parser: Parser) -> None:
    parser.add_argument(
        "--with_start",
        action="store_true",
        help="For a run that adapted an encoder: also write the page of that encoder, and one that shows both.",
    )


def beside_start(what: str, pages: Pages, **alone: Any) -> Pages:
    """The command `pages`, which with --with_start writes two pages into a folder and one with both of them.

    `alone`: options that are for the run alone, with the values that the start gets.
    """

    def run(config: Namespace) -> None:
        from hirl.explore.sides_page import ADAPTED, START, write_sides_page
        from hirl.explore.subjects import subject_kind
        from hirl.runs.folder import RunFolder

        if not config.with_start:
            pages(config)
            return
        adapted = RunFolder(config.subject)
        adapted.check_exists()
        if not adapted.start_file.is_file():
            raise ValueError(f"{config.subject!r} has no start to compare with: it did not adapt a frozen encoder")
        own = adapted.config
        images = {"subject": config.data or own["data"], "split": config.split or own["split"], "data": None}
        if getattr(config, "text", False) or getattr(config, "figure", None) is not None:
            raise ValueError("--with_start is for pages: leave out --text and --figure")
        if subject_kind(images["subject"]) != "images":
            raise ValueError(f"--with_start takes a folder of images or a known name, not {images['subject']!r}")
        folder: Path = adapted.folder / f"{what}_with_start" if config.out is None else config.out
        write_sides_page(adapted, folder, what)  # first, so that the folder is known for one of hirl
        start = images | {"encoder": str(adapted.start_file), "out": folder / START} | alone
        if "levels" in alone and own["hierarchy"] is not None:
            start["levels"] = own["hierarchy"]["levels"]
        for changes in (start, {"out": folder / ADAPTED}):
            pages(Namespace(**vars(config) | changes))
        print(f"Both pages are shown by one in {folder}. {page_address(folder)}")

    return run
