"""Self-supervised methods, one file each in the order of its paper: networks, views, loss, update, optimiser."""

from hirl.methods.base import Method
from hirl.methods.dino import DINO
from hirl.methods.ibot import IBOT
from hirl.methods.moco_v2 import MoCoV2
from hirl.methods.moco_v3 import MoCoV3
from hirl.methods.simsiam import SimSiam
from hirl.methods.swav import SwAV

__all__ = ["DINO", "IBOT", "Method", "MoCoV2", "MoCoV3", "SimSiam", "SwAV"]
