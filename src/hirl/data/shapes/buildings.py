"""Buildings: upright and rectangular, standing on the ground."""

import numpy as np

from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.forms import box, disc, length, wedge, wrap


def house(c: Canvas, kind: int) -> None:
    """A gabled roof over a wall."""
    c.pose(tilt=0.06)
    u, v = c.u, c.v
    wall = box(u, v - 0.38, 0.78, 0.56)
    roof = wedge(u, v, -0.98, -0.1, 1.12)
    c.shadow(np.minimum(wall, roof))
    c.solid(wall, c.base)
    if kind == 0:  # bricks
        row = np.rint((v - 0.1) * (1 / 0.19))
        marks = np.minimum(np.abs(wrap(v - 0.005, 0.19)), np.abs(wrap(u + 0.17 * row, 0.34))) - 0.028
    elif kind == 1:  # timber frame
        p, q = wrap(u, 0.52), wrap(v - 0.38, 0.56)
        posts = np.minimum(np.abs(wrap(u + 0.26, 0.52)), np.abs(wrap(v - 0.1, 0.56))) - 0.05
        marks = np.minimum(posts, np.abs(np.abs(p) - np.abs(q) * 0.93) * 0.73 - 0.042)
    elif kind == 2:  # planks
        marks = np.abs(wrap(v, 0.15)) - 0.036
    else:  # scalloped tiles
        row = np.rint(v * (1 / 0.2))
        cell = wrap(u + 0.15 * row, 0.3)
        marks = np.abs(length(cell, wrap(v, 0.2) + 0.12) - 0.17) - 0.03
    c.paint(np.maximum(marks, wall + 0.03), c.mark)
    c.solid(roof, c.accent)
    ridge = np.abs(wrap(v, 0.24)) - 0.03
    c.paint(np.maximum(ridge, roof + 0.05), c.rim)
    c.solid(box(u, v - 0.66, 0.15, 0.28), c.accent)


def tower(c: Canvas, kind: int) -> None:
    """Three tall blocks side by side."""
    c.pose(tilt=0.06)
    u, v = c.u, c.v
    high = [c.dice.between(0.6, 1.0) for _ in range(3)]
    high[1] = high[1] * 0.3 + 0.8
    blocks = [box(u - 0.62 * (i - 1), v - (1.05 - h), 0.29, h) for i, h in enumerate(high)]
    c.shadow(np.minimum(np.minimum(blocks[0], blocks[1]), blocks[2]))
    if kind == 0:  # windows
        marks = box(wrap(u, 0.207), wrap(v, 0.26), 0.062, 0.085)
    elif kind == 1:  # ribs
        marks = np.abs(wrap(u + 0.1035, 0.207)) - 0.048
    elif kind == 2:  # storeys
        marks = np.abs(wrap(v, 0.22)) - 0.06
    else:  # diagonal braces
        w = wrap(u, 0.62)
        marks = np.minimum(np.abs(wrap(v + w, 0.4)), np.abs(wrap(v - w, 0.4))) * 0.7 - 0.036
    for i, block in enumerate(blocks):
        c.solid(block, c.base if i != 1 else c.shade)
        c.paint(np.maximum(marks, block + 0.04), c.mark)
        c.paint(np.maximum(block, v - (1.12 - 2 * high[i])), c.accent)


def aqueduct(c: Canvas, kind: int) -> None:
    """A wall pierced by arches."""
    c.pose(tilt=0.06)
    u, v = c.u, c.v
    wall = box(u, v, 1.02, 0.78)
    c.shadow(wall)
    c.solid(wall, c.base)
    c.bulge(wall, 0.12)
    if kind == 0:  # large round arches
        x = wrap(u + 0.34, 0.68)
        opening = np.where(v < 0, disc(x, v, 0.25), np.abs(x) - 0.25)
    elif kind == 1:  # two rows of small ones
        x, y = wrap(u, 0.4), wrap(v + 0.22, 0.6)
        opening = np.where(y < -0.04, disc(x, y + 0.04, 0.13), box(x, y, 0.13, 0.22))
    elif kind == 2:  # pointed arches
        x = np.abs(wrap(u, 0.5))
        opening = np.where(v < 0.15, disc(x + 0.2, (v - 0.15) * 0.75, 0.38), x - 0.18)
    else:  # diamonds
        x, y = wrap(u, 0.46), wrap(v - 0.22, 0.46)
        opening = (np.abs(x) + np.abs(y) - 0.19) * 0.72
    c.solid(np.maximum(opening, box(u, v - 0.08, 0.98, 0.6)), c.mark)
    c.solid(box(u, v + 0.72, 1.1, 0.09), c.accent)
