"""Recipes shipped with the package: YAML files of `hirl pretrain`'s options, each headed by command, time and score."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """Names of the shipped recipes, such as small/dino."""
    return sorted(file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.yaml"))


def recipe_file(name: str) -> Path:
    """The file that `name` stands for: one of the user's own or, if there is none, a shipped recipe."""
    if Path(name).is_file():
        return Path(name)
    if name in recipe_names():
        return FOLDER / f"{name}.yaml"
    raise ValueError(
        f"there is neither a file nor a recipe {name!r}: name a YAML file or a recipe ({', '.join(recipe_names())})"
    )
