"""The tree of `Shapes`: 4 kingdoms, 12 families, 48 kinds, and their painters.

Kinds of a family share an outline and a type of marks. Families of a kingdom share setting and layout: flowers are
radial, fish lie along an axis, insects are two mirrored halves, buildings are upright and rectangular.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hirl.data.shapes import backgrounds, buildings, fish, flowers, insects
from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.forms import Floats


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
        backgrounds.meadow,
        {
            "daisy": Family(flowers.daisy, ("oxeye", "needle", "double", "striped")),
            "rose": Family(flowers.rose, ("wild", "blotched", "garden", "veined")),
            "lily": Family(flowers.lily, ("star", "tiger", "ribbon", "water")),
        },
    ),
    "fish": Kingdom(
        backgrounds.water,
        {
            "angelfish": Family(fish.angelfish, ("banded", "pinstriped", "chevron", "rippled")),
            "eel": Family(fish.eel, ("ribbon", "lined", "dashed", "zigzag")),
            "puffer": Family(fish.puffer, ("spotted", "peppered", "ringed", "netted")),
        },
    ),
    "insect": Kingdom(
        backgrounds.leaf,
        {
            "butterfly": Family(insects.butterfly, ("peacock", "veined", "beaded", "zebra")),
            "beetle": Family(insects.beetle, ("spotted", "striped", "belted", "chequered")),
            "dragonfly": Family(insects.dragonfly, ("tipped", "banded", "latticed", "pearled")),
        },
    ),
    "building": Kingdom(
        backgrounds.paving,
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
