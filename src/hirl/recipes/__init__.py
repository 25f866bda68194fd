"""Recipes shipped with the package: YAML files of `hirl pretrain`'s options, each headed by command, time and score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """What `--config` takes beside files, such as small/dino."""
    return sorted(file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.yaml"))


def recipe_file(name: str) -> Path:
    """The file a user means by `name`: one of their own, or else a shipped recipe."""
    if Path(name).is_file():
        return Path(name)
    if name in recipe_names():
        return FOLDER / f"{name}.yaml"
    raise ValueError(
        f"there is no file {name!r}: --config takes a YAML file or the name of a recipe ({', '.join(recipe_names())})"
    )


def recipe(name: str) -> dict[str, Any]:
    """A recipe as arguments of `hirl.pretrain`: `hirl.pretrain("photos/", **hirl.recipe("small/dino"))`."""
    import hirl.methods
    from hirl.train.hierarchy import Hierarchy

    options: dict[str, Any] = yaml.safe_load(recipe_file(name).read_text(encoding="utf-8"))
    method = options["method"]
    made = getattr(hirl.methods, method["class_path"].rpartition(".")[2])(**method["init_args"])
    return options | {"method": made, "hierarchy": Hierarchy(**options["hierarchy"])}
