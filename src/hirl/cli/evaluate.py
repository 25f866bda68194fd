"""`hirl evaluate` and `hirl embed`: how good an encoder is, and what it makes of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hirl.cli.command import Command, check_new

OWN: set[str | int] = {"subject", "tasks", "method", "quiet"}  # arguments that the command line words differently


def evaluate_options(parser: ArgumentParser) -> None:
    from hirl.evals import EVALUATIONS
    from hirl.evals.evaluate import DEFAULT_TASKS, evaluate

    parser.add_argument("subject", help="a run folder, a file of weights, a timm name, or torchvision:NAME")
    known = ", ".join(EVALUATIONS)
    parser.add_argument("tasks", nargs="*", help=f"of {known}; by default {', '.join(DEFAULT_TASKS)}")
    parser.add_function_arguments(evaluate, skip=OWN, fail_untyped=False)
    parser.add_argument("--method", help="package.module.Class of a run's method that is not of hirl")
    for name, kind in EVALUATIONS.items():
        parser.add_class_arguments(kind, name)


def run_evaluate(config: Namespace) -> None:
    from hirl.evals import EVALUATIONS
    from hirl.evals.evaluate import DEFAULT_TASKS, evaluate

    tasks = [config[name] for name in config.tasks or DEFAULT_TASKS]
    options = {name: value for name, value in vars(config).items() if name not in {*EVALUATIONS, "subject", "tasks"}}
    evaluate(config.subject, *tasks, **options)


def prepared(words: Sequence[str]) -> list[str]:
    """The words of a line as the parser takes them: unknown tasks are told, `--knn.ks 10 20` becomes a list."""
    import typing

    from hirl.evals import EVALUATIONS

    _check_tasks(words)
    hints = {name: typing.get_type_hints(kind) for name, kind in EVALUATIONS.items()}
    several = {
        f"--{name}.{option}"
        for name, options in hints.items()
        for option, hint in options.items()
        if any(typing.get_origin(part) is tuple for part in (hint, *typing.get_args(hint)))
    }
    parted = [part for word in words for part in (word.split("=", 1) if word.partition("=")[0] in several else [word])]
    return _joined(parted, several | {"--mean", "--std"})


def _check_tasks(words: Sequence[str]) -> None:
    """Tasks stand right after the subject; the parser itself would only call a wrong one unrecognised."""
    from hirl.evals import find_evaluation

    options = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    for word in words[2:options]:
        find_evaluation(word)


def _joined(words: Sequence[str], several: set[str]) -> list[str]:
    joined: list[str] = []
    place = 0
    while place < len(words):
        joined.append(words[place])
        place += 1
        if joined[-1] in several:
            end = place
            while end < len(words) and _is_number(words[end]):
                end += 1
            if end > place:
                joined.append(f"[{','.join(words[place:end])}]")
                place = end
    return joined


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def embed_options(parser: ArgumentParser) -> None:
    from hirl.explore.embed import embed

    parser.add_argument("run", help="a run folder")
    parser.add_function_arguments(embed, skip={"run", "out", "method", "quiet"}, fail_untyped=False)
    parser.add_argument("--out", type=Path, required=True, help="the file, .npz or .parquet")
    parser.add_argument("--method", help="package.module.Class of a run's method that is not of hirl")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def run_embed(config: Namespace) -> None:
    from hirl.explore.embed import check_target, embed

    check_target(config.out)
    check_new(config.out, overwrite=config.overwrite)
    options = {name: value for name, value in vars(config).items() if name != "overwrite"}
    arrays = embed(**options)
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    print(f"{shapes} written to {config.out}")


EMBED = Command("embed", "writes what a run makes of images: features, z0 … zL, paths", embed_options, run_embed)
EVALUATE = Command("evaluate", "tells how good an encoder is", evaluate_options, run_evaluate, prepared)
