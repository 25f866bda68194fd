"""Configuration, read in one way: a recipe, a run's config.yaml, the command line and Python all come through here.

`plain` turns files into plain options and objects into plain data; `classes` decides which class each option names;
`signatures`, `options` and `values` say which options and values there are, `selection` which classes are chosen;
`parser` makes values of files and of the command line.
"""

from hirl.config.classes import class_path, find_class, import_class
from hirl.config.plain import FORMAT_KEY, read_options, to_plain
from hirl.config.values import NonNegativeInt, PositiveFloat, PositiveInt

__all__ = [
    "FORMAT_KEY",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "class_path",
    "find_class",
    "import_class",
    "read_options",
    "to_plain",
]
