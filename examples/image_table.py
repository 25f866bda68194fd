"""A table of images in pandas, and in FiftyOne.

    hirl export photos/ --to table --out images.csv
    python examples/image_table.py images.csv
    python examples/image_table.py images.csv --fiftyone    # to browse, filter and tag them there

Start it where the table was written, for its paths begin there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas


def main(file: str, *, fiftyone: bool) -> None:
    table = pandas.read_csv(file)
    coarsest = max(name for name in table if name.startswith("level_"))
    print(f"{len(table):,} images in {table[coarsest].nunique()} of the coarsest nodes; the largest:")
    print(table[coarsest].value_counts().head().to_string())
    print("fit their leaf least clearly:")
    print(table.sort_values("confidence_0")[["file", "level_0", "confidence_0"]].head().to_string(index=False))
    if "keep" in table:
        print(f"{(~table['keep']).sum():,} copies")
    if "chosen" in table:
        print(f"{table['chosen'].sum():,} chosen to label first")
    if fiftyone:
        browse(file, table)


def browse(file: str, table: pandas.DataFrame) -> None:
    """Open the images in FiftyOne's own page, with a field per column."""
    import fiftyone as fo

    images = fo.Dataset.from_dir(
        dataset_type=fo.types.CSVDataset,
        data_path=str(Path.cwd()),
        labels_path=str(Path(file).resolve()),
        media_field="file",
        fields=columns(table),
    )
    fo.launch_app(images).wait()


def columns(table: pandas.DataFrame) -> dict[str, Callable[[str], Any]]:
    """What turns the text of each column into its type; FiftyOne leaves empty cells out."""
    made: dict[str, Callable[[str], Any]] = {"row": int, "group": lambda text: int(float(text))}
    made |= {"keep": lambda text: text == "True", "chosen": lambda text: text == "True"}
    return {name: made.get(name, float if name.startswith("confidence") else str) for name in table if name != "file"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="written by hirl export --to table, .csv")
    parser.add_argument("--fiftyone", action="store_true", help="open the images in FiftyOne, too")
    options = parser.parse_args()
    main(options.file, fiftyone=options.fiftyone)
