"""Fish: a body along an axis, with fins, a tail and an eye."""

import numpy as np

from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.forms import disc, ellipse, length, sector, sine, turned, turns_of, wrap


def _eye(c: Canvas, x: float, y: float, radius: float = 0.1) -> None:
    d = disc(c.u - x, c.v - y, radius)
    c.paint(d, [np.full((1, 1, 1), 0.96, dtype=np.float32)] * 3)
    c.paint(d + radius * 0.45, [np.full((1, 1, 1), 0.06, dtype=np.float32)] * 3)


def angelfish(c: Canvas, kind: int) -> None:
    """A tall disc with sweeping fins, barred from back to belly."""
    c.pose(tilt=0.16)
    u, v = c.u, c.v
    body = ellipse(u + 0.12, v, 0.72, 0.66)
    av = np.abs(v)
    fins = ellipse(*turned(u - 0.2, av - 0.66, 0.07), 0.5, 0.2)
    tail = np.maximum(np.maximum(av - 0.1 - (u - 0.45) * 0.8, 0.4 - u), length(u - 0.3, v) - 0.72)
    c.shadow(body)
    c.solid(fins, c.accent)
    c.solid(tail, c.accent)
    c.solid(body, c.base)
    c.bulge(body)
    if kind == 0:  # broad bars
        bars = np.abs(wrap(u + 0.1, 0.5)) - 0.12
    elif kind == 1:  # thin bars
        bars = np.abs(wrap(u, 0.2)) - 0.045
    elif kind == 2:  # chevrons
        bars = (np.abs(wrap(u + av * 0.9, 0.36)) - 0.09) * 0.75
    else:  # ripples
        bars = (np.abs(wrap(u + 0.11 * sine(v * 1.9), 0.34)) - 0.075) * 0.75
    c.paint(np.maximum(bars, body + 0.05), c.mark)
    _eye(c, -0.6, -0.12)


def eel(c: Canvas, kind: int) -> None:
    """A long waving body, marked along its length."""
    c.pose(tilt=0.5, reach=1.05)
    u = c.u
    w = (c.v - 0.3 * sine(u * 0.55 + 0.1)) * 0.85
    thick = np.sqrt(np.clip(1.02 - u * u, 0, 1)) * (0.36 - 0.06 * u)
    body = np.maximum((np.abs(w) - thick) * 0.9, np.abs(u) - 1)
    fin = np.maximum(np.abs(w + 0.06) - thick - 0.04 - 0.04 * sine(u * 4), np.abs(u - 0.1) - 0.88)
    fin = np.maximum(fin, w)
    c.shadow(body)
    c.solid(fin, c.accent)
    c.solid(body, c.base)
    c.bulge(body)
    if kind == 0:  # one ribbon
        marks = np.abs(w) - 0.13
    elif kind == 1:  # thin lines
        marks = np.abs(wrap(w, 0.2)) - 0.045
    elif kind == 2:  # dashes
        marks = np.maximum(np.abs(wrap(w + 0.12, 0.24)) - 0.07, np.abs(wrap(u, 0.34)) - 0.1)
    else:  # a zigzag
        marks = (np.abs(w + np.abs(wrap(u, 0.36)) * 1.4 - 0.13) - 0.09) * 0.6
    c.paint(np.maximum(marks, body + 0.04), c.mark)
    _eye(c, -0.8, -0.27, 0.09)


def puffer(c: Canvas, kind: int) -> None:
    """A ball with spines and small fins, marked all over."""
    c.pose(tilt=0.16)
    u, v = c.u, c.v
    r, a = length(u + 0.08, v), turns_of(u + 0.08, v)
    body = r - 0.76
    spines = np.maximum((np.abs(sector(r, a, 18)) - (0.98 - r) * 0.4) * 0.9, 0.7 - r)
    tail = np.maximum(np.abs(v) - 0.06 - (u - 0.6) * 0.55, np.maximum(0.6 - u, u - 1.0))
    c.shadow(body)
    c.solid(np.minimum(spines, tail), c.accent)
    c.solid(body, c.base)
    c.bulge(body)
    if kind == 0:  # large spots
        row = np.rint(v * (1 / 0.36))
        marks = disc(wrap(u + 0.21 * row, 0.42), wrap(v, 0.36), 0.135)
    elif kind == 1:  # small spots
        row = np.rint(v * (1 / 0.18))
        marks = disc(wrap(u + 0.1 * row, 0.2), wrap(v, 0.18), 0.058)
    elif kind == 2:  # rings
        row = np.rint(v * (1 / 0.42))
        marks = np.abs(disc(wrap(u + 0.24 * row, 0.48), wrap(v, 0.42), 0.145)) - 0.05
    else:  # a net
        p, q = turned(u, v, 0.125)
        marks = np.minimum(np.abs(wrap(p, 0.28)), np.abs(wrap(q, 0.28))) - 0.04
    c.paint(np.maximum(marks, body + 0.05), c.mark)
    c.paint(disc(u + 0.62, v + 0.18, 0.14), c.base)
    _eye(c, -0.62, -0.18, 0.11)
