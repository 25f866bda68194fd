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
    """A recipe as arguments of `hirl.pretrain`: `hirl.pretrain("photos/", **hirl.recipe("small/dino"))`.

    The config.yaml of a run is one, too; the images it names are left out.
    """
    from hirl.hierarchy.settings import Hierarchy

    options = yaml.safe_load(recipe_file(name).read_text(encoding="utf-8"))
    if not isinstance(options, dict) or not isinstance(options.get("method"), dict):
        raise ValueError(f"{name!r} is no recipe: it names no method with its class_path and init_args")
    options.pop("data", None)
    given = options.get("hierarchy", {})
    try:
        hierarchy = None if given is None else Hierarchy(**given)
    except TypeError as error:
        raise ValueError(f"the hierarchy of {name!r} has a setting that is not known: {error}") from error
    return options | {"method": _method(name, **options["method"]), "hierarchy": hierarchy}


def _method(name: str, class_path: str = "", init_args: dict[str, Any] | None = None, **others: Any) -> Any:
    import hirl.methods

    known = [kind for kind in hirl.methods.__all__ if kind != "Method"]
    package, _, kind = class_path.rpartition(".")
    if kind not in known or package.split(".")[0] not in ("", "hirl") or others:
        raise ValueError(f"the method of {name!r} must be one of {', '.join(known)}, not {class_path!r}")
    try:
        return getattr(hirl.methods, kind)(**init_args or {})
    except TypeError as error:
        raise ValueError(f"the method of {name!r} has an argument that is not known: {error}") from error
