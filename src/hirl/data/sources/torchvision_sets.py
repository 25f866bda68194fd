"""Data sets of torchvision by name, downloaded only on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.arrays import ArrayImages, as_pixels
from hirl.data.sources.escape import one_line
from hirl.data.sources.file_images import open_files
from hirl.data.sources.image_set import ImageSet, LabelNames
from hirl.data.sources.splits import choose_split
from hirl.files import cache_folder


@dataclass(frozen=True)
class _Known:
    """A set in torchvision: its class, the arguments of each split, the attributes with images and labels."""

    class_name: str
    splits: Mapping[str, Mapping[str, Any]]
    images: str = "data"
    labels: str = "targets"


_TRAIN_OR_NOT = {"train": {"train": True}, "test": {"train": False}}
_TRAIN_TEST = {"train": {"split": "train"}, "test": {"split": "test"}}
_TRAIN_VAL_TEST = {**_TRAIN_TEST, "val": {"split": "val"}}

KNOWN: dict[str, _Known] = {
    "cifar10": _Known("CIFAR10", _TRAIN_OR_NOT),
    "cifar100": _Known("CIFAR100", _TRAIN_OR_NOT),
    "dtd": _Known("DTD", _TRAIN_VAL_TEST, "_image_files", "_labels"),
    "fashion_mnist": _Known("FashionMNIST", _TRAIN_OR_NOT),
    "flowers102": _Known("Flowers102", _TRAIN_VAL_TEST, "_image_files", "_labels"),
    "food101": _Known("Food101", _TRAIN_TEST, "_image_files", "_labels"),
    "kmnist": _Known("KMNIST", _TRAIN_OR_NOT),
    "mnist": _Known("MNIST", _TRAIN_OR_NOT),
    "oxford_iiit_pet": _Known(
        "OxfordIIITPet", {"train": {"split": "trainval"}, "test": {"split": "test"}}, "_images", "_labels"
    ),
    "stl10": _Known("STL10", {**_TRAIN_TEST, "unlabeled": {"split": "unlabeled"}}, labels="labels"),
    "svhn": _Known("SVHN", {**_TRAIN_TEST, "extra": {"split": "extra"}}, labels="labels"),
}

# The 20 superclasses of CIFAR-100, which torchvision leaves out: five classes each, in the official order.
SUPERCLASSES: dict[str, str] = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
SUPERCLASS_OF = {kind: superclass for superclass, kinds in SUPERCLASSES.items() for kind in kinds.split()}


def known_name(text: str) -> str | None:
    """The set that `text` means, in any spelling: CIFAR-10, FashionMNIST, fashion-mnist, ..."""
    plain = "".join(c for c in text.lower() if c.isalnum())
    return next((name for name in KNOWN if name.replace("_", "") == plain), None)


def open_torchvision(name: str, *, root: Path | None, split: str | None, download: bool, channels: int) -> ImageSet:
    """`root` is torchvision's root; by default `datasets` in the cache folder."""
    known = KNOWN[name]
    part = choose_split(split, known.splits, name=name)
    source = _load(name, known, part, cache_folder() / "datasets" if root is None else root, download)
    labels, label_names = _labels(name, source, getattr(source, known.labels))
    images = getattr(source, known.images)
    if isinstance(images, np.ndarray | Tensor):
        pixels = as_pixels(images, channels=channels, name=name)
        return ArrayImages(name=f"{name}/{part}", pixels=pixels, labels=labels, label_names=label_names)
    paths = list(map(str, images))
    return open_files(paths, name=f"{name}/{part}", channels=channels, labels=labels, label_names=label_names)


def _load(name: str, known: _Known, part: str, root: Path, download: bool) -> Any:
    from torchvision import datasets

    if download:
        root.mkdir(parents=True, exist_ok=True)
    try:
        return getattr(datasets, known.class_name)(root=str(root), download=download, **known.splits[part])
    except (RuntimeError, OSError) as error:
        where = one_line(str(root.absolute()))
        if download:
            reason = one_line(str(error)).rstrip(".")
            raise OSError(f"the data set {name} could not be downloaded to {where}: {reason}") from error
        raise FileNotFoundError(
            f"the data set {name} is not in {where}: request its download, or pass as root the folder that holds it"
        ) from error


def _labels(name: str, source: Any, finest: Any) -> tuple[Tensor | None, LabelNames]:
    fine = torch.as_tensor(np.asarray(finest)).to(torch.int64)  # (N,)
    if bool((fine < 0).any()):  # stl10's unlabelled part
        return None, ()
    classes = getattr(source, "classes", None) or [str(number) for number in range(int(fine.max()) + 1)]
    names = tuple(map(str, classes))
    if name == "cifar100":
        order = list(SUPERCLASSES)
        parent = torch.tensor([order.index(SUPERCLASS_OF[kind]) for kind in names])
        return torch.stack([fine, parent[fine]], dim=1), (names, tuple(order))
    if name == "oxford_iiit_pet":
        return torch.stack([fine, torch.tensor(source._bin_labels)], dim=1), (names, tuple(source.bin_classes))
    return fine[:, None], (names,)
