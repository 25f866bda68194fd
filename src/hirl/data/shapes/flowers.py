"""Flowers: petals around a centre, at any angle."""

import numpy as np

from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.forms import Floats, disc, ellipse, length, sector, turns_of, wrap


def daisy(c: Canvas, kind: int) -> None:
    """Slim round-ended petals around a disc."""
    c.pose(tilt=0.5)
    r, a = length(c.u, c.v), turns_of(c.u, c.v)
    count = 22 if kind == 1 else 11
    width = (0.17, 0.085, 0.17, 0.19)[kind]
    heart = r - (0.22 if kind == 1 else 0.3)
    c.shadow(r - 0.85)
    back = ellipse(r - 0.6, sector(r, a, count, 0.5 / count), 0.38, width)
    c.solid(back, c.shade)
    w = sector(r, a, count)
    front = ellipse(r - 0.62, w, 0.4, width)
    c.solid(front, c.base)
    if kind == 2:  # a second ring
        inner = ellipse(r - 0.42, sector(r, a, count, 0.5 / count), 0.24, 0.12)
        c.solid(inner, c.mark)
    if kind == 3:  # a stripe down each petal
        c.paint(np.maximum(front + 0.05, np.abs(w) - 0.06), c.mark)
    c.solid(heart, c.accent)
    c.bulge(heart)


def rose(c: Canvas, kind: int) -> None:
    """Five broad petals that touch."""
    c.pose(tilt=0.5)
    r, a = length(c.u, c.v), turns_of(c.u, c.v)
    c.shadow(r - 0.85)

    def ring(reach: float, shift: float, notch: float = 0.0) -> Floats:
        w = sector(r, a, 5, shift)
        petal = ellipse(r - reach * 0.58, w, reach * 0.45, reach * 0.42)
        return petal if notch == 0 else np.maximum(petal, notch - length(r - reach * 1.06, w))

    if kind == 2:  # ring within ring
        for i, reach in enumerate((1.0, 0.8, 0.6, 0.42)):
            petal = ring(reach, 0.1 * i)
            c.solid(np.minimum(petal, r - reach * 0.6), c.base if i % 2 == 0 else c.mark)
        c.solid(r - 0.13, c.accent)
        return
    petal = ring(1.0, 0.0, 0.22 if kind == 3 else 0.0)
    c.solid(petal, c.base)
    c.bulge(petal)
    if kind == 1:  # a blotch on each petal
        c.paint(disc(r - 0.58, sector(r, a, 5), 0.2), c.mark)
    if kind == 3:  # veins
        c.paint(np.maximum(np.maximum(petal + 0.06, 0.3 - r), np.abs(sector(r, a, 20, 0.025)) - 0.035), c.mark)
    if kind == 0:  # a crown of stamens
        c.paint(disc(r - 0.36, sector(r, a, 10), 0.065), c.mark)
    c.solid(r - 0.2, c.accent)


def lily(c: Canvas, kind: int) -> None:
    """Pointed petals, a star."""
    c.pose(tilt=0.5)
    r, a = length(c.u, c.v), turns_of(c.u, c.v)
    c.shadow(r - 0.7)

    def star(reach: float, half: float, count: int, shift: float = 0.0) -> Floats:
        w = sector(r, a, count, shift)
        t = np.clip(r * (1 / reach), 0, 1.2)
        across = (np.abs(w) - half * reach * 4 * (t + 0.05) * (1 - t) * (1.3 - 0.6 * t)) * 0.75
        return np.maximum(across, r - reach)

    if kind == 3:  # tiers of many points
        for i, reach in enumerate((1.08, 0.86, 0.64, 0.42)):
            c.solid(star(reach, 0.2, 8, 0.0625 * (i % 2)), c.base if i % 2 == 0 else c.mark)
        c.solid(r - 0.12, c.accent)
        return
    for shift, tint in ((1 / 6, c.shade), (0.0, c.base)):
        petal, w = star(1.1, 0.23, 3, shift), sector(r, a, 3, shift)
        c.solid(petal, tint)
        if kind == 1:  # spots
            c.paint(np.maximum(petal + 0.05, disc(wrap(r - 0.1, 0.2), wrap(w, 0.2), 0.065)), c.mark)
        if kind == 2:  # a ribbon down each petal
            c.paint(np.maximum(petal + 0.06, np.abs(w) - 0.075), c.mark)
    if kind == 0:  # long stamens
        w = sector(r, a, 6)
        c.paint(np.minimum(np.maximum(np.abs(w) - 0.03, r - 0.5), disc(r - 0.5, w, 0.09)), c.mark)
    c.solid(r - 0.12, c.accent)
