"""How many of 30 planted duplicates are found among 1,200 photographs, and what else is called a copy.

    python -m benchmarks.duplicates FOLDER                       # features of noise: an encoder that sees nothing
    python -m benchmarks.duplicates FOLDER --encoder RUN         # or those of an encoder, with its own threshold

Planted are 10 copies, 10 images re-encoded (JPEG, quality 60, at 0.8 of their size) and 10 cropped by 5 % at each edge.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from hirl.data import open_images
from hirl.explore.collection import open_collection
from hirl.explore.copy_threshold import measure_threshold
from hirl.explore.duplicates import find_duplicates

KINDS = ("copies", "re-encoded", "cropped")
EACH = 10


def plant(source: str, folder: Path, count: int) -> dict[str, tuple[str, str]]:
    """Copy photographs and plant duplicates; by name of a duplicate its kind and the name of its original."""
    images, dice = open_images(source), random.Random(0)
    names = []
    for number, index in enumerate(dice.sample(range(len(images)), count)):
        file = Path(images.path(index))
        names.append(f"{number:05}{file.suffix}")
        shutil.copy(file, folder / names[-1])
    planted = {}
    for place, name in enumerate(dice.sample(names, EACH * len(KINDS))):
        kind = KINDS[place // EACH]
        target = folder / f"planted {name}"
        if kind == "copies":
            shutil.copy(folder / name, target)
        else:
            with Image.open(folder / name) as picture:
                altered, (width, height) = picture.convert("RGB"), picture.size
            if kind == "re-encoded":
                altered = altered.resize((round(0.8 * width), round(0.8 * height)), Image.Resampling.LANCZOS)
            else:
                across, down = round(0.05 * width), round(0.05 * height)
                altered = altered.crop((across, down, width - across, height - down))
            altered.save(target, "JPEG", quality=60 if kind == "re-encoded" else 90)
        planted[target.name] = (kind, name)
    return planted


def measure(source: str, encoder: str | None, count: int) -> str:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        folder.mkdir()
        planted = plant(source, folder, count)
        threshold = 0.99
        if encoder is None:
            noise = np.random.default_rng(0).standard_normal((count + len(planted), 64)).astype(np.float32)
            np.save(Path(place) / "noise.npy", noise)
            collection = open_collection(Path(place) / "noise.npy", folder, quiet=True)
        else:
            collection = open_collection(encoder, folder, quiet=True)
            threshold = measure_threshold(collection)
        found: Counter[str] = Counter()
        for group in find_duplicates(collection, threshold).groups:
            for copy in group.copies:
                pair = sorted((Path(collection.paths[image]).name for image in (group.keep, copy.image)), reverse=True)
                kind, original = planted.get(pair[0], ("others", ""))
                found[kind if original == pair[1] else "others"] += 1
    return ", ".join(f"{kind} {found[kind]}" for kind in (*KINDS, "others"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--encoder")
    parser.add_argument("--images", type=int, default=1200)
    given = parser.parse_args()
    print(measure(given.folder, given.encoder, given.images))
