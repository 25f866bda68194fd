"""Views, the random crops that a network gets of an image: their description, random parameters and rendering."""

from hirl.data.views.masks import BlockMask, Mask
from hirl.data.views.view import Blur, Jitter, View, multi_crop, pair

__all__ = ["BlockMask", "Blur", "Jitter", "Mask", "View", "multi_crop", "pair"]
