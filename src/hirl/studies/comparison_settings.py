"""What is compared, resolved and checked before anything is trained: a mistake in the last recipe is found at once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hirl.data.sources.image_set import ImageSet
from hirl.evals import find_evaluation
from hirl.evals.base import Evaluation
from hirl.evals.labels import check_labels
from hirl.evals.subject import check_images_named
from hirl.features.image_request import ImageRequest
from hirl.hierarchy.settings import Hierarchy, ResolvedHierarchy
from hirl.studies.arms import make_arms
from hirl.train.checks import check_sizes
from hirl.train.resolve import EPOCHS, hierarchy_defaults, start_share
from hirl.train.start import open_heads


def check_comparison(
    recipes: Sequence[str],
    seeds: Sequence[int],
    tasks: Sequence[str | Evaluation],
    epochs: int | None,
    epochs_factor: float,
) -> None:
    for what, listed in (("recipes", recipes), ("tasks", tasks)):
        if isinstance(listed, str):
            raise ValueError(f"{what} is {listed!r}, but must be a list, such as [{listed!r}]")
    names = [task if isinstance(task, str) else task.name for task in tasks]
    for what, given in (("recipe", recipes), ("seed", seeds), ("task", names)):
        if not given:
            raise ValueError(f"a comparison needs at least one {what}")
        if len(set(given)) < len(given):
            raise ValueError(f"the same {what} is named twice in {', '.join(map(str, given))}")
    if min(seeds) < 0:
        raise ValueError(f"seeds is {min(seeds)}, but must be at least 0")
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs is {epochs}, but must be at least 1")
    if not 0 < epochs_factor < math.inf:
        raise ValueError(f"epochs_factor is {epochs_factor}, but must be a number above 0")
    if epochs is not None and epochs_factor != 1:
        raise ValueError("epochs and epochs_factor both set the number of epochs: give one of them")
    for task in tasks:
        if isinstance(task, str):
            find_evaluation(task)


def checked_images(
    data: Any, evaluation_data: Any, test_data: Any, tasks: Sequence[str | Evaluation], options: Mapping[str, Any]
) -> ImageSet:
    """The images a recipe is trained on, opened as `pretrain` will open them, once those of every task are checked."""
    channels = options.get("channels", 3)
    request = ImageRequest(data, test_data, options.get("split"), None, channels)
    evaluated = request
    if evaluation_data is not None:
        evaluated = ImageRequest(evaluation_data, test_data, None, None, channels)
    for asked in tasks:
        task = find_evaluation(asked)() if isinstance(asked, str) else asked
        check_images_named(task, evaluation_data, "evaluation_data")
        try:
            parts = task.open_parts(evaluated)
            if task.needs.labels:
                check_labels(parts)
            task.check(parts)
        except ValueError as error:
            raise ValueError(f"{task.name}: {error}") from error
    return request.train()


def resolved_arms(
    recipe_name: str,
    options: Mapping[str, Any],
    images: ImageSet,
    arms: Mapping[str, Mapping[str, Any]],
    ablate: Mapping[str, Sequence[Any]],
    classes: Collection[type],
) -> dict[str, ResolvedHierarchy | None]:
    """HIRL's settings of every arm of a recipe, checked against the images before anything is trained."""
    hierarchy: Hierarchy = options["hierarchy"]
    epochs, unfreeze = options["epochs"], options.get("unfreeze", 0)
    method, encoder = options["method"], options.get("encoder")
    with_heads = encoder is not None and open_heads(encoder, method) is not None
    share = start_share(unfreeze, with_heads=with_heads)
    defaults = hierarchy_defaults(method, unfreeze, start_share=share)
    own = hierarchy.resolve(len(images), epochs, defaults)
    resolved: dict[str, ResolvedHierarchy | None] = {}
    try:
        made = make_arms(own, arms, ablate, classes)
    except ValueError as error:
        raise ValueError(f"{recipe_name!r}: {error}") from error
    for arm, settings in made.items():
        try:
            found = None if settings is None else settings.resolve(len(images), epochs, defaults)
            check_sizes(images, found, batch_size=options.get("batch_size"), epochs=epochs)
        except ValueError as error:
            raise ValueError(f"the arm {arm} of {recipe_name!r}: {error}") from error
        resolved[arm] = found
    return resolved


def with_length(options: Mapping[str, Any], epochs: int | None, factor: float) -> dict[str, Any]:
    """A recipe's options for `epochs`, or `factor` times its own, with the first tree at the same share of them."""
    own: int = options.get("epochs", EPOCHS)
    length = max(1, round(own * factor)) if epochs is None else epochs
    hierarchy: Hierarchy | None = options["hierarchy"]
    return {**options, "epochs": length, "hierarchy": hierarchy and hierarchy.for_epochs(own, length)}
