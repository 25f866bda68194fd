"""The contact sheet of `hirl images` and `hirl views`: its options, checks and output."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from hirl.cli.command import check_new
from hirl.config.parser import Parser
from hirl.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

    from hirl.data import Skipped

FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}


def sheet_options(parser: Parser, *, required: bool) -> None:
    parser.add_argument(
        "--out", type=Path, required=required, help="The file of the contact sheet (.png, .webp, .jpg)."
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace the file at --out.")


def check_sheet(config: Namespace) -> None:
    """Raise ValueError if the sheet cannot be written to --out."""
    if config.out is None:
        return
    if config.out.suffix.lower() not in FORMATS:
        raise ValueError(f"--out is {str(config.out)!r}, but a contact sheet must end in one of {', '.join(FORMATS)}")
    check_new(config.out, overwrite=config.overwrite)


def save_sheet(sheet: Image, out: Path) -> None:
    with atomic_write(out) as aside, aside.open("wb") as file:
        sheet.save(file, FORMATS[out.suffix.lower()], quality=80)
    print(f"Contact sheet of {sheet.width} × {sheet.height} pixels written to {out}")


def print_skipped(skipped: Skipped, fate: str = "each replaced by the next readable one") -> None:
    if len(skipped):
        print(f"Unreadable images, {fate}: {len(skipped)}")
        for bad in skipped:
            print(f"  {bad}")
