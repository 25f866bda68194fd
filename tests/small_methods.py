"""Every method of the package at a size for tests, made from its recipe in small/: no test lists the methods."""

from __future__ import annotations

import inspect
from typing import Any

from hirl.config import read_options
from hirl.config.classes import known_classes
from hirl.methods.base import Method
from hirl.train.defaults import small_recipe

METHODS: dict[str, type[Method]] = known_classes(Method)
NAMES = list(METHODS)
CHOICES = f"choose one of {', '.join(NAMES)}"  # the end of many messages
BATCH = 16
WIDEST = 32
RESNET: dict[str, Any] = {"backbone": "resnet10t", "backbone_args": {"channels": [8, 8, 16, 16]}}


def vit(size: int) -> dict[str, Any]:
    """A transformer with 16 patches for images of `size` pixels."""
    shape = {"img_size": size, "patch_size": size // 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return {"backbone": "vit_tiny_patch16_224", "backbone_args": shape}


def title(name: str) -> str:
    """A method's name in text, such as MoCo v2."""
    return (METHODS[name].__doc__ or "").partition(":")[0]


def missing_recipe(name: str) -> str:
    file = METHODS[name].__module__.rpartition(".")[2]
    return f"{name} has no recipe for small images: add src/hirl/recipes/small/{file}.yaml with its class_path"


def small_arguments(name: str, *, size: int = 32, **changes: Any) -> dict[str, Any]:
    """Constructor arguments for batches of 16 images: those of the recipe, with a tiny network and no width above 32.

    The peak learning rate is the recipe's own, at its larger batch. Of `changes`, those are made that the method takes.
    """
    recipe = small_recipe(METHODS[name])
    assert recipe is not None, missing_recipe(name)
    options = read_options(recipe)
    arguments: dict[str, Any] = options["method"]["init_args"]
    network = vit(size) if "img_size" in (arguments.get("backbone_args") or {}) else RESNET
    narrow = {key: WIDEST for key, value in arguments.items() if type(value) is int and value > WIDEST}
    arguments |= {"lr": arguments["lr"] * options["batch_size"] / BATCH} | narrow | network
    taken = inspect.signature(METHODS[name]).parameters
    return arguments | {key: value for key, value in changes.items() if key in taken}
