"""`--with_start`: show a command's page for an adapted run beside the page for the encoder it started from."""

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


def with_start(what: str, pages: Pages, **alone: Any) -> Pages:
    """Extend the command `pages`: with --with_start, it writes a page for the run, one for its start, and one showing
    both.

    `alone`: options that apply to the run only, with the values to use for the start.
    """

    def run(config: Namespace) -> None:
        from hirl.explore.run_page import ADAPTED, START, write_sides_page
        from hirl.explore.subjects import subject_kind
        from hirl.runs.folder import RunFolder

        if not config.with_start:
            pages(config)
            return
        adapted = RunFolder(config.subject)
        adapted.check_exists()
        if not adapted.start_file.is_file():
            raise ValueError(f"{config.subject!r} must be a run that adapted a frozen encoder to use --with_start")
        own = adapted.config
        images = {"subject": config.data or own["data"], "split": config.split or own["split"], "data": None}
        if getattr(config, "text", False) or getattr(config, "figure", None) is not None:
            raise ValueError("--with_start is for pages: leave out --text and --figure")
        if subject_kind(images["subject"]) != "images":
            raise ValueError(
                f"--data is {images['subject']!r}, but with --with_start must be a folder of images or a known name"
            )
        folder: Path = adapted.folder / f"{what}_with_start" if config.out is None else config.out
        write_sides_page(adapted, folder, what)  # first: its files mark the folder as written by hirl
        start = images | {"encoder": str(adapted.start_file), "out": folder / START} | alone
        if "levels" in alone and own["hierarchy"] is not None:
            start["levels"] = own["hierarchy"]["levels"]
        for changes in (start, {"out": folder / ADAPTED}):
            pages(Namespace(**vars(config) | changes))
        print(f"Page that shows both written to {folder}. {page_address(folder)}")

    return run
