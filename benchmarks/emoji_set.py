"""Emojis as a labelled set of two levels: subcategories (animal-mammal, clothing) in categories (Objects, Flags).

    npm pack emoji-datasource-google emoji-datasource-apple emoji-datasource-twitter emoji-datasource-facebook
    python -m benchmarks.emoji_set FOLDER-OF-UNPACKED-PACKAGES... --out emoji/

The same emoji as several vendors draw it: pictures of 64 px, none of them a photograph and no label one of ImageNet's.
A fifth of the emojis of every subcategory becomes the val split, with all its drawings, so that no emoji is in both.
Subcategories of fewer than five emojis are left out.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

from PIL import Image

FEWEST = 5  # emojis of a subcategory
VAL_SHARE = 5  # one emoji in so many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", type=Path, help="folders that hold emoji.json and img/VENDOR/64")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for emoji in json.loads((given.packages[0] / "emoji.json").read_text()):
        groups[emoji["category"], emoji["subcategory"]].append(emoji["image"])
    kept = {labels: sorted(files) for labels, files in groups.items() if len(files) >= FEWEST}
    counts = {"train": 0, "val": 0}
    for (category, subcategory), files in sorted(kept.items()):
        random.Random(f"{category}/{subcategory}").shuffle(files)
        for position, file in enumerate(files):
            split = "val" if position < len(files) // VAL_SHARE else "train"
            folder = given.out / split / category / subcategory
            folder.mkdir(parents=True, exist_ok=True)
            for package in given.packages:
                for drawing in package.glob(f"img/*/64/{file}"):
                    _on_white(drawing).save(folder / f"{drawing.parts[-3]}-{file}")
                    counts[split] += 1
    categories = {category for category, _ in kept}
    print(
        f"{given.out}: {counts['train']:,} training and {counts['val']:,} val images of {len(kept)} subcategories in "
        f"{len(categories)} categories"
    )


def _on_white(file: Path) -> Image.Image:
    drawing = Image.open(file).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", drawing.size, "white"), drawing).convert("RGB")


if __name__ == "__main__":
    main()
