"""From a folder of photos to its tree, without an option: makes a folder of unlabelled photos, measures each command.

    python -m benchmarks.photos FOLDER --images 1500 --out walk/

The photos are images of FOLDER (at any depth), enlarged to mixed sizes and saved in mixed formats in one flat folder,
together with a corrupt, an empty, an animated and a wrongly named file and one with an odd name. Then `tree`, `search`,
`duplicates`, `sample` and `tsne` run as a newcomer would type them, without a run; with `--train` also of a run.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from PIL import Image

SIZES = ((320, 240), (240, 320), (400, 300), (256, 256), (640, 427), (180, 240))
FORMATS = (("jpg", "JPEG"), ("jpg", "JPEG"), ("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("JPG", "JPEG"))
COMMANDS = ("tree {}", "search {} {query}", "duplicates {}", "sample {}", "tsne {}")


def make_photos(source: Path, folder: Path, count: int, *, seed: int = 0) -> None:
    """Fill `folder` with `count` photos and five awkward files."""
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
        second.convert("RGB").resize((200, 300)).save(folder / "<b>odd & \u00fcnusual\u202e.jpg", "JPEG")


class Taken(NamedTuple):
    """What a command took: seconds by the clock and of the CPU, and the memory of its largest process."""

    command: str
    seconds: float
    cpu: float
    gigabytes: float


def walk(folder: Path, *, train: bool) -> list[Taken]:
    """Run the commands in the folder that holds photos/: without a run, then, if asked for, with one."""
    query = next(folder.joinpath("photos").glob("IMG_0003.*")).relative_to(folder)
    commands = [line.format("photos/", query=query) for line in COMMANDS]
    if train:
        run = "runs/photos-mocov2-hirl-0"
        commands += [f"pretrain photos/ --out {run}", *(line.format(run, query=query) for line in COMMANDS)]
    return [timed(command, folder) for command in commands]


def timed(command: str, folder: Path) -> Taken:
    print(f"$ hirl {command}", flush=True)
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "hirl.cli.main", *command.split()], cwd=folder)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"hirl {command} failed")
    return Taken(command, time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of images, which may be nested")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("walk"))
    parser.add_argument("--train", action="store_true", help="train a run, and look at it as well")
    args = parser.parse_args()
    make_photos(args.source, args.out / "photos", args.images)
    taken = walk(args.out, train=args.train)
    print("| command | seconds | CPU seconds | GB, largest process |\n|---|---|---|---|")
    for one in taken:
        print(f"| `hirl {one.command}` | {one.seconds:.0f} | {one.cpu:.0f} | {one.gigabytes:.1f} |")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[1]
    print(f"{sum(one.seconds for one in taken) / 60:.1f} min in all, on {cores} cores with a load of {load:.1f}")


if __name__ == "__main__":
    main()
