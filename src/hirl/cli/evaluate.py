"""`hirl evaluate`: measure an encoder with downstream tasks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hirl.cli.collection import ENCODER, method_option
from hirl.cli.command import Command
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.evals import Evaluation


def options(parser: Parser) -> None:
    from hirl.evals import EVALUATIONS
    from hirl.evals.evaluate import DEFAULT_TASKS, evaluate

    parser.add_argument("subject", help=ENCODER)
    tasks = f"Any of {', '.join(EVALUATIONS)}, or package.module.Class; by default {', '.join(DEFAULT_TASKS)}."
    parser.add_argument("tasks", nargs="*", help=tasks)
    parser.add_options(evaluate, skip={"subject", "tasks", "method", "quiet"})
    method_option(parser)
    add_task_options(parser, DEFAULT_TASKS)


def add_task_options(parser: Parser, default: Sequence[str]) -> None:
    """Add the options of all tasks. An option of a task that is not evaluated would have no effect: it is an error."""
    from hirl.evals import EVALUATIONS, find_evaluation

    for name, kind in EVALUATIONS.items():
        parser.add_options(kind, name)

    def check(_files: Mapping[str, Any], values: Namespace) -> None:
        kinds = [find_evaluation(name) for name in values.tasks or default]
        asked = [kind.name for kind in kinds if EVALUATIONS.get(kind.name) is kind]  # the others have no options
        for option in parser.line.options:
            task, dot, _ = option.partition(".")
            if dot and task in EVALUATIONS and task not in asked:
                raise ValueError(
                    f"--{option} is for the task {task}, which is not evaluated (tasks: {', '.join(asked)}): "
                    "add the task, or leave the option out"
                )

    parser.post_process = check


def named_tasks(config: Namespace, names: Sequence[str]) -> list[Evaluation]:
    """The evaluations of these names with their options; a class of the user's own has its defaults."""
    from hirl.evals import EVALUATIONS, find_evaluation

    tasks = []
    for name in names:
        kind = find_evaluation(name)
        try:
            tasks.append(getattr(config, kind.name) if EVALUATIONS.get(kind.name) is kind else kind())
        except TypeError as error:  # an argument without a default, or a method that is missing
            raise ValueError(f"the evaluation {name!r} cannot be made without arguments: {error}") from error
    return tasks


def run(config: Namespace) -> None:
    from hirl.evals import EVALUATIONS
    from hirl.evals.evaluate import DEFAULT_TASKS, evaluate

    tasks = named_tasks(config, config.tasks or DEFAULT_TASKS)
    options = {name: value for name, value in vars(config).items() if name not in {*EVALUATIONS, "subject", "tasks"}}
    evaluate(config.subject, *tasks, **options)


EVALUATE = Command(
    "evaluate",
    "measure how good an encoder is",
    options,
    run,
    examples={"hirl evaluate runs/photos-dino-hirl-0 knn linear": "evaluate a run's encoder on labelled images"},
    guide="evaluation.md",
)
