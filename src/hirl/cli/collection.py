"""Options that all commands share which look at images through a run or through features."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hirl.config import PositiveInt
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.explore.collection import Collection


ENCODER = (
    "A run folder or a checkpoint in it, a file of weights, or a timm name or torchvision:NAME with its published "
    "weights; random:NAME has random ones."
)


def collection_options(parser: Parser, *, subject: str | None = None, tree: bool = True) -> None:
    """`subject`: its help; by default it is images, a run or a file of features."""
    from hirl.features.feature_files import FEATURES

    anything = (
        f"A folder of images or a known name such as shapes, a run folder, {FEATURES}. Of images without a run, what "
        "is written goes to runs/IMAGES-ENCODER/."
    )
    parser.add_argument("subject", help=subject or anything)
    parser.add_argument(
        "--encoder",
        help="For images: a run folder, a file of weights, a timm name or torchvision:NAME; by default the one that "
        "comes with hirl.",
    )
    parser.add_argument(
        "--data", help="The images of a run or a file; by default those the run was trained on, or the file's own."
    )
    parser.add_argument("--split", help="The split of the data; by default its training split.")
    if tree:
        parser.add_argument("--tree", type=Path, help="A tree written by `hirl cluster`; by default the run's own.")
        parser.add_argument(
            "--levels", type=list[PositiveInt], help="Nodes per level, fine to coarse, if there is no tree yet."
        )
        parser.add_argument(
            "--anew",
            action="store_true",
            help="For images: build a new tree instead of updating that of the last time.",
        )
    parser.add_argument("--method", help="The class of the run's method as package.module.Class, if not part of hirl.")
    parser.add_argument("--device", help="cpu, cuda …; by default a GPU if there is one.")
    parser.add_argument("--workers", type=int, help="Processes that read images.")


def collection_of(config: Namespace, **changes: Any) -> Collection:
    """The collection that these options describe."""
    from hirl.explore.collection import open_collection

    names = ("subject", "encoder", "data", "split", "tree", "levels", "anew", "method", "device", "workers")
    return open_collection(**({name: value for name, value in vars(config).items() if name in names} | changes))


def target(config: Namespace, name: str) -> Path:
    """The folder a command writes to, checked before the work: --out, or by default one of this name."""
    from hirl.explore.page import check_page_folder
    from hirl.explore.subjects import default_folder

    default = default_folder(config.subject, name, encoder=config.encoder)  # checks the subject as well
    folder: Path = default if config.out is None else config.out
    if config.out is not None or folder.parent.exists():  # the folder of a collection of images is made with it
        check_page_folder(folder)
    return folder


def page_address(page: Path) -> str:
    """How to open a page that was written."""
    return f"Open {(page / 'index.html').resolve().as_uri()}"
