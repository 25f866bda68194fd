"""What a network sees of an image: the description of a view, its random parameters, and how it is rendered."""

from hirl.data.views.view import BlockMask, Blur, Jitter, View, multi_crop, pair

__all__ = ["BlockMask", "Blur", "Jitter", "View", "multi_crop", "pair"]
