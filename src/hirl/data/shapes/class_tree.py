"""The tree of `Shapes`: 4 kingdoms, 12 families, 48 kinds, and their painters.

Kinds of a family share an outline and a type of marks. Families of a kingdom share setting and layout: flowers are
radial, fish lie along an axis, insects are two mirrored halves, buildings are upright and rectangular.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hirl.data.shapes import buildings, fish, flowers, insects
from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.forms import Floats, ellipse, sine, turned, wrap

# The setting of a kingdom is a faint pattern behind all its families. It plays the role of context, as sea and sky do
# in photographs: visible in every crop, it identifies the kingdom but not the family.


def meadow(u: Floats, v: Floats) -> Floats:
    """Leaves scattered about, for flowers."""
    one = ellipse(*turned(wrap(u, 0.64), wrap(v, 0.64), 0.1), 0.27, 0.1)
    other = ellipse(*turned(wrap(u + 0.32, 0.64), wrap(v + 0.32, 0.64), -0.1), 0.27, 0.1)
    return np.minimum(one, other)


def water(u: Floats, v: Floats) -> Floats:
    """Ripples, for fish."""
    return np.abs(wrap(v + 0.09 * sine(u * 1.3), 0.36)) - 0.06


def leaf(u: Floats, v: Floats) -> Floats:
    """A leaf with its veins, for insects."""
    side = np.abs(wrap(u, 1.5))
    return np.minimum(side - 0.05, np.abs(wrap(v + side * 0.9, 0.4)) * 0.74 - 0.045)


def paving(u: Floats, v: Floats) -> Floats:
    """Square slabs, for buildings."""
    return np.minimum(np.abs(wrap(u, 0.46)), np.abs(wrap(v, 0.46))) - 0.045


@dataclass(frozen=True)
class Family:
    painter: Callable[[Canvas, int], None]  # arguments: canvas, number of the kind's marks
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Kingdom:
    setting: Callable[[Floats, Floats], Floats]
    families: dict[str, Family]


TREE = {
    "flower": Kingdom(
        meadow,
        {
            "daisy": Family(flowers.daisy, ("oxeye", "needle", "double", "striped")),
            "rose": Family(flowers.rose, ("wild", "blotched", "garden", "veined")),
            "lily": Family(flowers.lily, ("star", "tiger", "ribbon", "water")),
        },
    ),
    "fish": Kingdom(
        water,
        {
            "angelfish": Family(fish.angelfish, ("banded", "pinstriped", "chevron", "rippled")),
            "eel": Family(fish.eel, ("ribbon", "lined", "dashed", "zigzag")),
            "puffer": Family(fish.puffer, ("spotted", "peppered", "ringed", "netted")),
        },
    ),
    "insect": Kingdom(
        leaf,
        {
            "butterfly": Family(insects.butterfly, ("peacock", "veined", "beaded", "zebra")),
            "beetle": Family(insects.beetle, ("spotted", "striped", "belted", "chequered")),
            "dragonfly": Family(insects.dragonfly, ("tipped", "banded", "latticed", "pearled")),
        },
    ),
    "building": Kingdom(
        paving,
        {
            "house": Family(buildings.house, ("brick", "timbered", "plank", "shingled")),
            "tower": Family(buildings.tower, ("windowed", "ribbed", "layered", "braced")),
            "aqueduct": Family(buildings.aqueduct, ("Roman", "tiered", "Gothic", "diamond")),
        },
    ),
}

KINGDOMS = tuple(TREE)
FAMILIES = tuple(family for kingdom in TREE.values() for family in kingdom.families)
KINDS = tuple(
    f"{marks} {name}"
    for kingdom in TREE.values()
    for name, family in kingdom.families.items()
    for marks in family.marks
)
