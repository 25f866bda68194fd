"""`hirl pretrain`: the arguments of `hirl.pretrain` and of the methods, read off their signatures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hirl.cli.command import Command
from hirl.recipes import recipe_file

STOPPED = 130


def pretrain_options(parser: ArgumentParser) -> None:
    import hirl.methods  # noqa: F401 (so that methods are found by their names)
    from hirl.train.pretrain import pretrain

    parser.add_argument("data", nargs="?", help="a folder of images, a .npz file, or a known name such as shapes")
    parser.add_argument(
        "--config", action="config", help="a recipe such as small/dino, or a YAML file of these options"
    )
    parser.add_function_arguments(pretrain, skip={"data"}, fail_untyped=False)


def run_pretrain(config: Namespace) -> None:
    from hirl.train.loop import Stopped
    from hirl.train.pretrain import pretrain

    options = {name: value for name, value in vars(config).items() if name not in ("config", "data")}
    try:
        pretrain(data_of(config, "pretrain"), **options)
    except Stopped:
        sys.exit(STOPPED)


def data_of(config: Namespace, command: str) -> str:
    """The images named on the line, or else in the last config file that names any."""
    import yaml

    told = [yaml.safe_load(Path(str(file)).read_text(encoding="utf-8")).get("data") for file in config.config or []]
    data: str | None = next((place for place in (config.data, *reversed(told)) if place is not None), None)
    if data is None:
        raise ValueError(f"{command} needs the images to train on: hirl {command} FOLDER --method METHOD")
    return data


def prepared(words: Sequence[str]) -> list[str]:
    """The words of a `hirl pretrain` line as the parser takes them, checked before it imports anything they name."""
    parted = [part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    for place in (place + 1 for place, word in enumerate(parted[:-1]) if word == "--config"):
        parted[place] = str(recipe_file(parted[place]))
    check_class_paths(parted)
    return joined_levels(configs_first(parted))


def configs_first(words: Sequence[str]) -> list[str]:
    """The parser takes what comes last: so that options come on top of a config, wherever it stands on the line."""
    places = [place for place, word in enumerate(words[:-1]) if word == "--config"]
    configs = [word for place in places for word in words[place : place + 2]]
    others = [word for place, word in enumerate(words) if place not in places and place - 1 not in places]
    return [*others[:1], *configs, *others[1:]]


def joined_levels(words: Sequence[str]) -> list[str]:
    """`--hierarchy.levels 3000 300 30` as the list the parser wants."""
    if "--hierarchy.levels" not in words:
        return list(words)
    start = words.index("--hierarchy.levels") + 1
    end = next((place for place in range(start, len(words)) if not words[place].isdigit()), len(words))
    if end == start:
        return list(words)
    return [*words[:start], f"[{','.join(words[start:end])}]", *words[end:]]


def check_class_paths(words: Sequence[str]) -> None:
    """A method outside the package is code: it may come from the command line, never from a config file.

    The parser imports, hence runs, a class path before it looks at it, so this comes first.
    """
    import yaml

    places = [place + 1 for place, word in enumerate(words[:-1]) if word == "--config"]
    for file in (words[place] for place in places):
        try:
            method = (yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}).get("method")
        except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file!r} is no YAML file of options: {' '.join(str(error).split())}") from error
        name = method.get("class_path") if isinstance(method, dict) else method
        if isinstance(name, str) and "." in name and not name.startswith("hirl.methods."):
            raise ValueError(f"{file!r} names the method {name!r}, which is not of hirl: say it with --method instead")
    for place, word in enumerate(words[:-1]):
        if word == "--method" and "." not in words[place + 1]:
            import hirl.methods

            names = [name for name in hirl.methods.__all__ if name != "Method"]
            if words[place + 1] not in names:
                raise ValueError(f"there is no method {words[place + 1]!r}: choose one of {', '.join(names)}")


PRETRAIN = Command(
    "pretrain", "learns a hierarchical representation of a folder of images", pretrain_options, run_pretrain, prepared
)
