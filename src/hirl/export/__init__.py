"""An encoder or a tree in the form that other people's tools load by themselves: one file per target."""

from hirl.export.export_encoder import Written, export_encoder
from hirl.export.export_tree import export_tree

__all__ = ["Written", "export_encoder", "export_tree"]
