"""The setting of a kingdom: a faint background pattern shared by all its families.

It plays the role of context, as sea and sky do in photographs: visible in every crop, it identifies the kingdom but not
the family.
"""

import numpy as np

from hirl.data.shapes.forms import Floats, ellipse, sine, turned, wrap


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
