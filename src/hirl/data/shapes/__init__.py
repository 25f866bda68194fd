"""The built-in picture set: drawn, not downloaded, with a known tree of 4 kingdoms, 12 families and 48 kinds."""

from hirl.data.shapes.picture_set import Shapes

__all__ = ["Shapes"]
