"""Curves and outlines as arithmetic on arrays of coordinates, bit-identical on every machine.

Only + − × ÷, square root, rounding and comparison are used, one array operation at a time. IEEE 754 defines the exact
result of each, so no processor or library version can change a pixel; sine and arc tangent, which it does not define,
are polynomials here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# float32 throughout; numpy's stubs lose the width in products with plain numbers
Floats = NDArray[np.floating[Any]]

# Curves -------------------------------------------------------------------------------------------------------------


def sine(turns: Floats) -> Floats:
    """sin(2π · turns), within 2e-3: drawing only needs it smooth and periodic."""
    t = turns - np.rint(turns)
    y = t * (8 - 16 * np.abs(t))
    return y * (0.775 + 0.225 * np.abs(y))


def turns_of(x: Floats, y: Floats) -> Floats:
    """The angle of (x, y) in turns, from −½ to ½."""
    ax, ay = np.abs(x), np.abs(y)
    z = np.minimum(ax, ay) / (np.maximum(ax, ay) + 1e-9)
    zz = z * z
    a = z * (0.1591494 + zz * (-0.0526 + zz * (0.0288 + zz * -0.0103)))
    a = np.where(ay > ax, 0.25 - a, a)
    a = np.where(x < 0, 0.5 - a, a)
    return np.where(y < 0, -a, a)


def wrap(x: Floats, period: float) -> Floats:
    """Fold x into one period around 0: repeats anything drawn with it."""
    return x - np.rint(x * (1 / period)) * period


def sector(radius: Floats, turns: Floats, count: int, shift: float = 0.0) -> Floats:
    """Arc length from the middle line of the nearest of `count` sectors around a centre."""
    return wrap(turns + shift, 1 / count) * radius * (2 * np.pi)


def length(x: Floats, y: Floats) -> Floats:
    return np.sqrt(x * x + y * y)


# Signed distances: below 0 inside, of slope 1 near the edge -----------------------------------------------------------


def disc(x: Floats, y: Floats, radius: float | Floats) -> Floats:
    return length(x, y) - radius


def ellipse(x: Floats, y: Floats, a: float, b: float) -> Floats:
    k = length(x * (1 / a), y * (1 / b))
    g = length(x * (1 / (a * a)), y * (1 / (b * b)))
    return k * (k - 1) / (g + 1e-6)


def box(x: Floats, y: Floats, a: float | Floats, b: float | Floats) -> Floats:
    return np.maximum(np.abs(x) - a, np.abs(y) - b)


def line(x: Floats, y: Floats, start: tuple[float, float], end: tuple[float, float], width: float) -> Floats:
    """A stroke with round ends, `width` on each side."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    px, py = x - start[0], y - start[1]
    along = np.clip((px * dx + py * dy) * (1 / (dx * dx + dy * dy)), 0, 1)
    return length(px - along * dx, py - along * dy) - width


def wedge(x: Floats, y: Floats, top: float, bottom: float, slope: float) -> Floats:
    """A triangle, apex up at y = top, base at y = bottom, |x| growing by `slope` per unit of y."""
    norm = 1 / float(np.sqrt(1 + slope * slope))
    return np.maximum((np.abs(x) - (y - top) * slope) * norm, y - bottom)


def turned(x: Floats, y: Floats, turns: float) -> tuple[Floats, Floats]:
    """Coordinates in a frame turned by this much."""
    angle = np.full((1, 1, 1), turns, dtype=np.float32)
    c, s = sine(angle + 0.25), sine(angle)
    return x * c + y * s, y * c - x * s
