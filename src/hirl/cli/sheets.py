"""Options, checks and output that `hirl images` and `hirl views` share: a source of images, a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from hirl.cli.command import check_new
from hirl.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

    from hirl.data import Skipped

FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}


def source_options(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="a folder, a .npz file, or a known name such as shapes or cifar10")
    parser.add_argument("--split", help="train, val, test …; by default the training split")
    parser.add_argument("--root", type=Path, help="the folder that holds a torchvision data set")
    parser.add_argument("--download", action="store_true", help="download a missing torchvision data set")


def sheet_options(parser: ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--out", type=Path, required=required, help="the file of the contact sheet (.png, .webp, .jpg)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


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
