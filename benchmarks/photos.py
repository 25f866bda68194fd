"""From a folder of photos to its tree, without an option: makes a folder of unlabelled photos and times each command.

    python -m benchmarks.photos FOLDER --images 1500 --out walk/

The photos are images of FOLDER (at any depth), enlarged to mixed sizes and saved in mixed formats in one flat folder,
together with a corrupt, an empty, an animated and a wrongly named file. Then `hirl pretrain photos/`, `tree`, `search`,
`duplicates` and `sample` run as a newcomer would type them.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

SIZES = ((320, 240), (240, 320), (400, 300), (256, 256), (640, 427), (180, 240))
FORMATS = (("jpg", "JPEG"), ("jpg", "JPEG"), ("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("JPG", "JPEG"))


def make_photos(source: Path, folder: Path, count: int, *, seed: int = 0) -> None:
    """Fill `folder` with `count` photos and four awkward files."""
    files = sorted(file for file in source.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if len(files) < count:
        raise SystemExit(f"{source} has {len(files)} images, but --images asks for {count}")
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    chosen = draw.sample(files, count)
    for place, file in enumerate(chosen):
        suffix, kind = draw.choice(FORMATS)
        with Image.open(file) as image:
            image.convert("RGB").resize(draw.choice(SIZES)).save(folder / f"IMG_{place:04d}.{suffix}", kind)
    with Image.open(chosen[0]) as first, Image.open(chosen[1]) as second:
        data = (folder / "IMG_0002.jpg").read_bytes() if (folder / "IMG_0002.jpg").exists() else b"\xff\xd8\xff\xe0"
        (folder / "corrupt.jpg").write_bytes(data[: len(data) // 3])
        (folder / "empty.jpg").write_bytes(b"")
        first.convert("P").save(folder / "animated.gif", save_all=True, append_images=[second.convert("P")])
        second.convert("RGB").resize((300, 200)).save(folder / "really_a_png.jpg", "PNG")


def walk(folder: Path) -> list[tuple[str, float]]:
    """Run the commands in the folder that holds photos/; the seconds of each."""
    run = "runs/photos-mocov2-hirl-0"
    query = next(folder.joinpath("photos").glob("IMG_0003.*")).relative_to(folder)
    commands = ["pretrain photos/", f"tree {run}", f"search {run} {query}", f"duplicates {run}", f"sample {run}"]
    taken = []
    for command in commands:
        start = time.perf_counter()
        print(f"$ hirl {command}", flush=True)
        subprocess.run([sys.executable, "-m", "hirl.cli.main", *command.split()], cwd=folder, check=True)
        taken.append((command, time.perf_counter() - start))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of images, which may be nested")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("walk"))
    args = parser.parse_args()
    make_photos(args.source, args.out / "photos", args.images)
    taken = walk(args.out)
    for command, seconds in taken:
        print(f"{seconds:7.1f} s  hirl {command}")
    print(f"{sum(seconds for _, seconds in taken) / 60:7.1f} min in all, on {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
