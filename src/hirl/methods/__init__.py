"""Self-supervised methods, one file each: networks, views, loss, update, optimiser."""

from hirl.methods.base import Method
from hirl.methods.dino import DINO
from hirl.methods.moco_v2 import MoCoV2

__all__ = ["DINO", "Method", "MoCoV2"]
