"""Options shared by all commands that show images by means of a run or of features."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hirl.config import PositiveInt
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.explore.collection import Collection


ENCODER = (
    "A run folder or a checkpoint in it, a file of weights, or a timm name or torchvision:NAME for published weights; "
    "random:NAME for random weights."
)


def collection_options(parser: Parser, *, subject: str | None = None, tree: bool = True) -> None:
    """`subject`: help text of the subject, for commands that do not accept images, runs and features alike."""
    from hirl.features.feature_files import FORMATS_HELP

    anything = (
        f"A folder of images or a known name such as shapes, a run folder, {FORMATS_HELP}. Output for images without a "
        "run goes to runs/IMAGES-ENCODER/."
    )
    parser.add_argument("subject", help=subject or anything)
    parser.add_argument(
        "--encoder",
        help="For images: a run folder, a file of weights, a timm name or torchvision:NAME; by default the one that "
        "comes with hirl.",
    )
    parser.add_argument(
        "--data", help="The images of a run or a file; by default those of the run's training, or those the file names."
    )
    parser.add_argument("--split", help="The split of the data; by default its training split.")
    if tree:
        parser.add_argument("--tree", type=Path, help="A tree written by `hirl cluster`; by default the run's own.")
        parser.add_argument(
            "--levels", type=list[PositiveInt], help="Nodes per level, fine to coarse, if there is no tree yet."
        )
        parser.add_argument(
            "--anew", action="store_true", help="For images: build a new tree instead of updating the previous one."
        )
    method_option(parser)
    parser.add_argument("--device", help="cpu, cuda …; by default a GPU if there is one.")
    parser.add_argument("--workers", type=int, help="Processes that read images.")


def method_option(parser: Parser) -> None:
    parser.add_argument("--method", help="The class of the run's method as package.module.Class, if it is not in hirl.")


def open_from_options(config: Namespace, **changes: Any) -> Collection:
    """The collection that these options describe."""
    from hirl.explore.collection import open_collection

    names = ("subject", "encoder", "data", "split", "tree", "levels", "anew", "method", "device", "workers")
    return open_collection(**({name: value for name, value in vars(config).items() if name in names} | changes))


def output_folder(config: Namespace, name: str) -> Path:
    """The folder to write to, --out or by default one of this name, checked before anything is computed."""
    from hirl.explore.page import check_page_folder
    from hirl.explore.subjects import default_folder

    default = default_folder(config.subject, name, encoder=config.encoder)  # checks the subject as well
    folder: Path = default if config.out is None else config.out
    if config.out is not None or folder.parent.exists():  # otherwise the collection creates it
        check_page_folder(folder)
    return folder


def page_address(page: Path) -> str:
    """How to open a page that was written."""
    return f"Open {(page / 'index.html').resolve().as_uri()}"
