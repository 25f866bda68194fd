"""A recipe as arguments of `pretrain`."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from hirl.config import read_options


def recipe(name: str | os.PathLike[str], *, classes: Collection[type] = ()) -> dict[str, Any]:
    """A recipe as keyword arguments: `hirl.pretrain("photos/", **hirl.recipe("small/dino"))`.

    Args:
        name: The name of a shipped recipe, or a YAML file such as the config.yaml of a run, whose `data` is ignored.
        classes: Methods and other classes outside hirl that the file names.
    """
    from hirl.config.classes import known_classes  # imported here to keep `import hirl` fast
    from hirl.config.parser import load
    from hirl.methods.base import Method
    from hirl.train.pretrain import pretrain

    options = load(pretrain, read_options(name), source=os.fspath(name), classes=classes, skip={"data"})
    if options["method"] is None:
        names = ", ".join(known_classes(Method))
        raise ValueError(f"{os.fspath(name)!r}: the option method is missing: choose one of {names}")
    return options
