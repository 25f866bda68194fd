"""Configuration, read in one way: a recipe, a run's config.yaml, the command line and Python all come through here.

`plain` turns files into plain options and objects into plain data; `classes` decides which class each option names;
`parser` reads types and help off signatures; `load` makes keyword arguments of plain options.
"""

from hirl.config.classes import class_path, find_class, import_class
from hirl.config.plain import read_options, to_plain, upgrade

__all__ = ["class_path", "find_class", "import_class", "read_options", "to_plain", "upgrade"]
