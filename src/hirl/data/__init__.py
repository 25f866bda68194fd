"""From images to batches: sources, the built-in pictures, views and loaders. Names are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hirl.data.loader import EvaluationLoader as EvaluationLoader
    from hirl.data.loader import Loader as Loader
    from hirl.data.shapes import Shapes as Shapes
    from hirl.data.sources import BadImage as BadImage
    from hirl.data.sources import ImageSet as ImageSet
    from hirl.data.sources import Skipped as Skipped
    from hirl.data.sources import in_memory as in_memory
    from hirl.data.sources import open_images as open_images
    from hirl.data.sources import open_in_memory as open_in_memory
    from hirl.data.sources import read_or_replace as read_or_replace
    from hirl.data.views import View as View
    from hirl.data.views.render import Batch as Batch

_NAMES = {
    "loader": "EvaluationLoader Loader",
    "shapes": "Shapes",
    "sources": "BadImage ImageSet Skipped in_memory open_images open_in_memory read_or_replace",
    "views": "View",
    "views.render": "Batch",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"hirl.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hirl.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOMES)
