"""A batch of pictures in the making: colours, pose, anti-aliased parts, and nuisances such as occlusion and grain."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hirl.data.shapes.dice import GRAIN, Dice, mix
from hirl.data.shapes.forms import Floats, length, sine, wrap

_LUMA = (0.299, 0.587, 0.114)


def colour(hue: Floats, saturation: Floats, luma: Floats) -> list[Floats]:
    """A colour of exactly this luma, so that greyscale pictures keep their contrast, as three channels."""
    hue = hue + 0.045 * sine(hue * 2 - 0.6)  # fewer raw greens and magentas, which dominate an even wheel
    wheel = [np.clip(np.abs(wrap(hue - shift, 1.0)) * 6 - 1, 0, 1) for shift in (0.5, 0.8333333, 0.1666667)]
    grey = wheel[0] * _LUMA[0] + wheel[1] * _LUMA[1] + wheel[2] * _LUMA[2]
    return [luma + saturation * (channel - grey) for channel in wheel]


class Canvas:
    """A batch of pictures in the making; (u, v) are the object's own coordinates, with a radius of about 1."""

    def __init__(self, *, dice: Dice, size: int) -> None:
        self.dice = dice
        self.size = size
        centres = (np.arange(size, dtype=np.float32) * 2 + (1 - size)) * np.float32(1 / size)
        self.x = centres[None, None, :]
        self.y = centres[None, :, None]
        self.rgb = np.zeros((3, len(dice.keys), size, size), dtype=np.float32)
        self._choose_colours()

    def _choose_colours(self) -> None:
        """Hues in a loose harmony with distant tones; the same distribution for every kind."""
        dice = self.dice
        hue = dice.between(0, 1)
        second = hue + dice.sign() * np.where(dice.chance(0.5) > 0, dice.between(0.05, 0.15), dice.between(0.35, 0.5))
        light_body = dice.chance(0.5)
        pale, deep = dice.between(0.68, 0.86), dice.between(0.18, 0.34)
        self.base = colour(hue, dice.between(0.2, 0.5), np.where(light_body > 0, pale, deep))
        self.mark = colour(second, dice.between(0.15, 0.5), np.where(light_body > 0, deep, pale))
        self.accent = colour(hue + dice.between(0.3, 0.7), dice.between(0.3, 0.65), dice.between(0.42, 0.62))
        third = hue + dice.between(0.15, 0.85)
        self.ground = colour(third, dice.between(0.05, 0.3), dice.between(0.1, 0.95))
        self.far = colour(third + dice.between(-0.12, 0.12), dice.between(0.05, 0.3), dice.between(0.1, 0.95))
        # a dark or a white outline: a dark edge must not give a shape away
        ink = dice.chance(0.65)
        self.rim = [np.where(ink > 0, channel * 0.4, 0.35 * channel + 0.62) for channel in self.base]
        self.shade = [channel * 0.72 for channel in self.base]

    def pose(self, *, tilt: float, reach: float = 1.0) -> None:
        """Place the object: rotated by up to `tilt` turns in either direction, possibly mirrored, moved and scaled."""
        dice = self.dice
        angle = dice.between(-tilt, tilt)
        scale = dice.between(0.7, 1.1) * reach
        stretch = dice.between(0.88, 1.14)
        dx, dy = self.x - dice.between(-0.24, 0.24), self.y - dice.between(-0.24, 0.24)
        c, s = sine(angle + 0.25), sine(angle)
        self.u = (dx * c + dy * s) * (dice.sign() / (scale * stretch))
        self.v = (dy * c - dx * s) * (stretch / scale)
        self.sharpness = scale * np.float32(self.size / 2)  # pixels per unit of (u, v)

    def cover(self, distance: Floats) -> Floats:
        """The share of each pixel inside the edge."""
        return np.clip(0.5 - distance * self.sharpness, 0, 1)

    def paint(self, distance: Floats, tint: list[Floats]) -> None:
        share = self.cover(distance)
        for channel, value in zip(self.rgb, tint, strict=True):
            channel += share * (value - channel)

    def solid(self, distance: Floats, tint: list[Floats]) -> None:
        """A part with a rim around it."""
        self.paint(distance - 0.035, self.rim)
        self.paint(distance, tint)

    def shadow(self, distance: Floats) -> None:
        """Darken, or lighten, the ground softly around an outline."""
        near = np.clip(1 - distance * np.float32(2.5), 0, 1)
        self.rgb *= 1 - self.dice.between(-0.25, 0.45) * (near * near)

    def bulge(self, distance: Floats, strength: float = 0.22) -> None:
        """Light the middle of a part and darken towards its edge."""
        inside = self.cover(distance)
        self.rgb *= 1 + inside * (np.clip(distance * np.float32(-2.2), 0, 1) * (2 * strength) - strength)

    def backdrop(self, setting: Callable[[Floats, Floats], Floats]) -> None:
        """A soft gradient with the kingdom's setting drawn faintly on it and blurred lights over all."""
        dice = self.dice
        angle = dice.between(0, 1)
        slope = np.clip(0.5 + 0.5 * (self.x * sine(angle) + self.y * sine(angle + 0.25)), 0, 1)
        for channel, near, far in zip(self.rgb, self.ground, self.far, strict=True):
            channel[:] = near + slope * (far - near)
        self.pose(tilt=0.5)
        share = self.cover(setting(self.u, self.v)) * dice.between(0.35, 0.8)
        tone = dice.chance(0.5)  # towards white or towards black
        self.rgb += share * (tone - self.rgb) * 0.5
        for _ in range(4):
            distance = length(self.x - dice.between(-1.1, 1.1), self.y - dice.between(-1.1, 1.1))
            radius, blur = dice.between(0.15, 0.6), dice.between(3, 12)
            share = np.clip((radius - distance) * blur + 0.5, 0, 1) * dice.between(0.15, 0.8)
            light = colour(dice.between(0, 1), dice.between(0, 0.4), dice.between(0.1, 0.95))
            for channel, value in zip(self.rgb, light, strict=True):
                channel += share * (value - channel)

    def weather(self) -> None:
        """Nuisances between object and lens: occluding blobs, uneven light, contrast, grain."""
        dice = self.dice
        pixels = np.float32(self.size / 2)
        for _ in range(2):
            angle, away, radius = dice.between(0, 1), dice.between(0.55, 1.1), dice.between(0.1, 0.28)
            distance = length(self.x - away * sine(angle), self.y - away * sine(angle + 0.25)) - radius
            share = np.clip(0.5 - distance * pixels * dice.between(0.2, 1), 0, 1) * dice.chance(0.4)
            blob = colour(dice.between(0, 1), dice.between(0.1, 0.6), dice.between(0.2, 0.85))
            for channel, value in zip(self.rgb, blob, strict=True):
                channel += share * (value - channel)
        angle, gain = dice.between(0, 1), dice.between(0.05, 0.45)
        light = dice.between(0.88, 1.1) + gain * (self.x * sine(angle) + self.y * sine(angle + 0.25))
        grain = dice.between(0.005, 0.045) * self._grain()
        self.rgb *= light
        self.rgb += grain

    def _grain(self) -> Floats:
        """Noise of triangular distribution in (−1, 1), hashed from the picture's key and the pixel's position."""
        key = mix(self.dice.keys, GRAIN).astype(np.uint32)[:, None, None]
        place = np.arange(self.size * self.size, dtype=np.uint32).reshape(1, self.size, self.size)
        with np.errstate(over="ignore"):
            z = (place * np.uint32(0x9E3779B1)) ^ key
            z = (z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D)
            z = (z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B)
            z ^= z >> np.uint32(16)
        halves = (z & np.uint32(0xFFFF)).astype(np.float32) + (z >> np.uint32(16)).astype(np.float32)
        return halves * np.float32(2.0**-16) - 1

    def as_bytes(self) -> NDArray[np.uint8]:
        """(B, 3, size, size)."""
        levels = (np.clip(self.rgb, 0, 1) * 255 + 0.5).astype(np.uint8)
        return levels.transpose(1, 0, 2, 3)
