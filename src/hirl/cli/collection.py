"""Options that all commands share which look at images through a run or through features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.explore.collection import Collection


FEATURES = "A run folder, a .npz file written by `hirl embed`, or a .npy file of features (N, D)."


def collection_options(parser: Parser, *, subject: str = FEATURES, tree: bool = True) -> None:
    parser.add_argument("subject", help=subject)
    parser.add_argument("--data", help="The images; by default those the run was trained on, or the .npz file names.")
    parser.add_argument("--split", help="The split of the data; by default its training split.")
    if tree:
        parser.add_argument("--tree", type=Path, help="A tree written by `hirl cluster`; by default the run's own.")
        parser.add_argument(
            "--levels", type=list[PositiveInt], help="Nodes per level, fine to coarse, if there is no tree yet."
        )
    parser.add_argument("--method", help="The class of the run's method as package.module.Class, if not part of hirl.")
    parser.add_argument("--device", help="cpu, cuda …; by default a GPU if there is one.")
    parser.add_argument("--workers", type=int, help="Processes that read images.")


def collection_of(config: Namespace, **changes: Any) -> Collection:
    """The collection that these options describe."""
    from hirl.explore.collection import open_collection

    names = ("subject", "data", "split", "tree", "levels", "method", "device", "workers")
    return open_collection(**({name: config[name] for name in names if name in config} | changes))


def page_address(page: Path) -> str:
    """How to open a page that was written."""
    return f"Open {(page / 'index.html').resolve().as_uri()}"
