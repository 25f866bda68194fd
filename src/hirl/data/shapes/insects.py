"""Insects: two mirrored halves about a body, at any angle."""

import numpy as np

from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.forms import box, disc, ellipse, length, line, sector, turned, turns_of, wrap


def butterfly(c: Canvas, kind: int) -> None:
    """Four broad wings."""
    c.pose(tilt=0.5)
    u, v = np.abs(c.u), c.v
    p, q = turned(u - 0.52, v + 0.36, -0.09)
    s, t = turned(u - 0.42, v - 0.45, 0.1)
    upper, lower = ellipse(p, q, 0.52, 0.4), ellipse(s, t, 0.42, 0.34)
    wings = np.minimum(upper, lower)
    c.shadow(wings)
    c.solid(lower, c.shade)
    c.solid(upper, c.base)
    if kind == 0:  # an eye on each wing
        for d in (length(p - 0.1, q), length(s - 0.06, t)):
            c.paint(d - 0.24, c.mark)
            c.paint(d - 0.15, c.accent)
            c.paint(d - 0.075, c.mark)
    elif kind == 1:  # veins from the root
        fan = np.abs(sector(length(u + 0.1, v - 0.02), turns_of(u + 0.1, v - 0.02), 14))
        c.paint(np.maximum(fan - 0.04, wings + 0.05), c.mark)
    elif kind == 2:  # a border with beads in it
        c.paint(np.maximum(np.maximum(-0.17 - wings, wings), 0.18 - u), c.mark)
        beads = disc(wings + 0.085, sector(length(u, v), turns_of(u, v), 22), 0.045)
        c.paint(np.maximum(beads, 0.25 - u), c.base)
    else:  # zebra
        c.paint(np.maximum(np.abs(wrap(length(u, v * 0.8) - 0.05, 0.26)) - 0.065, wings + 0.04), c.mark)
    c.solid(ellipse(c.u, v + 0.02, 0.085, 0.5), c.rim)
    c.paint(line(u, v, (0.03, -0.5), (0.22, -0.85), 0.025), c.rim)


def beetle(c: Canvas, kind: int) -> None:
    """A domed shell, split down the middle, on six legs."""
    c.pose(tilt=0.5)
    u, v = np.abs(c.u), c.v
    shell = ellipse(c.u, v - 0.12, 0.66, 0.78)
    legs = np.minimum(
        np.minimum(line(u, v, (0.4, -0.3), (0.85, -0.6), 0.045), line(u, v, (0.5, 0.15), (0.98, 0.15), 0.045)),
        line(u, v, (0.4, 0.5), (0.85, 0.85), 0.045),
    )
    c.shadow(shell)
    c.paint(legs, c.rim)
    c.paint(line(u, v, (0.08, -0.75), (0.32, -1.0), 0.03), c.rim)
    c.solid(ellipse(c.u, v + 0.66, 0.34, 0.26), c.accent)
    c.solid(shell, c.base)
    c.bulge(shell)
    if kind == 0:  # spots
        marks = disc(wrap(u - 0.28, 0.4), wrap(v - 0.1, 0.42), 0.13)
    elif kind == 1:  # stripes along
        marks = np.abs(wrap(u - 0.18, 0.2)) - 0.048
    elif kind == 2:  # belts across
        marks = np.abs(wrap(v - 0.05 + 0.25 * u, 0.4)) - 0.1
    else:  # a chequerboard
        marks = np.maximum(-wrap(u, 0.4), wrap(v, 0.4))
        marks = np.minimum(marks, np.maximum(wrap(u, 0.4), -wrap(v, 0.4)))
    c.paint(np.maximum(marks, shell + 0.05), c.mark)
    c.paint(np.maximum(u - 0.025, np.maximum(shell, -0.5 - v)), c.rim)


def dragonfly(c: Canvas, kind: int) -> None:
    """A needle body and four narrow wings."""
    c.pose(tilt=0.5, reach=1.05)
    u, v = np.abs(c.u), c.v
    p, q = turned(u - 0.56, v + 0.34, -0.04)
    s, t = turned(u - 0.52, v - 0.14, 0.05)
    upper, lower = ellipse(p, q, 0.55, 0.2), ellipse(s, t, 0.52, 0.2)
    c.shadow(np.minimum(upper, lower))
    for wing, along, across in ((lower, s, t), (upper, p, q)):
        c.solid(wing, c.base)
        if kind == 0:  # dark tips
            marks = 0.16 - along
        elif kind == 1:  # bands
            marks = np.abs(wrap(along, 0.3)) - 0.075
        elif kind == 2:  # a lattice
            marks = np.minimum(np.abs(wrap(along + across, 0.22)), np.abs(wrap(along - across, 0.22))) * 0.7 - 0.026
        else:  # a row of pearls
            marks = disc(wrap(along, 0.26), across, 0.085)
        c.paint(np.maximum(marks, wing + 0.035), c.mark)
    c.solid(line(c.u, v, (0.0, -0.35), (0.0, 0.95), 0.06), c.accent)
    c.paint(np.maximum(np.abs(wrap(v, 0.2)) - 0.03, box(c.u, v - 0.35, 0.06, 0.6)), c.rim)
    c.solid(disc(u - 0.08, v + 0.5, 0.12), c.accent)
