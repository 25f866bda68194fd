"""How many suggested names fit: nodes named by predicted ImageNet classes, against labels that the names never see.

    hirl embed tf_efficientnet_lite0 --data wordnet50/ --split val --out wordnet50.npz
    python -m benchmarks.names wordnet50.npz --out names

A tree is built over the features, with levels for their number or those of `--levels`. The label of a node is the most
frequent class of its images. A suggested name, compared word by word without what stands in brackets, is
- *class*: the label, or a synonym of the ImageNet class of that name;
- *kind*: a coarser label of the same images, or a kind that the definition of that ImageNet class gives ("dog");
- *one of two*: a pair of classes, of which one is a class or a kind as above;
- *other*: anything else; *none*: no name was suggested.
A file `…_nodes.csv` lists all nodes.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hirl.encoders.embedded import ImageNetClassifier, embedded_classifier
from hirl.explore.node_names import class_names, kinds_of
from hirl.hierarchy.builder import POOLED_FEATURES
from hirl.hierarchy.levels import levels_by_number
from hirl.hierarchy.tree import PrototypeTree
from hirl.terminal.tables import Cells, print_tables, write_tables

JUDGEMENTS = ("class", "kind", "one of two", "other", "none")
Terms = frozenset[str]


def terms(name: str) -> Terms:
    """The words of a name, in any order: of "Corn_(maize)", corn; of "Pepper_bell", the same as of "bell pepper"."""
    return frozenset(re.findall(r"[a-z]+", re.sub(r"\(.*?\)", "", name.casefold())))


def meanings(classifier: ImageNetClassifier) -> list[tuple[set[Terms], set[Terms]]]:
    """The synonyms and the kinds of each ImageNet class."""
    return [
        ({terms(name) for name in names.split(", ")}, {terms(kind) for kind in kinds_of(names, definition)})
        for names, definition in zip(classifier.names, classifier.definitions, strict=True)
    ]


def judged(name: str | None, label: str, coarser: Sequence[str], known: Sequence[tuple[set[Terms], set[Terms]]]) -> str:
    """How a suggested name fits the label of a node, one of `JUDGEMENTS`; `known` are the `meanings` of classes."""
    if name is None:
        return "none"
    synonyms, kinds = {terms(label)}, {terms(above) for above in coarser}
    for same, above in known:
        if terms(label) in same:
            synonyms, kinds = synonyms | same, kinds | above
    parts = [terms(part) for part in name.split(", ")]
    if len(parts) == 1:
        return "class" if parts[0] in synonyms else "kind" if parts[0] in kinds else "other"
    return "one of two" if any(part in synonyms | kinds for part in parts) else "other"


def judged_nodes(
    tree: PrototypeTree, features: Tensor, labels: Tensor, classes: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Level, node, images, label, its share of the images, suggested name and judgement of every node."""
    classifier = embedded_classifier()
    names, known = class_names(tree, features, classifier), meanings(classifier)
    rows = []
    for level, nodes in enumerate(tree.image_paths.T):
        for node in nodes.unique().tolist():
            own = labels[nodes == node]
            (most, count), *_ = Counter(own[:, 0].tolist()).most_common(1)
            above = [classes[k][int(own[own[:, 0] == most][0, k])] for k in range(1, labels.shape[1])]
            label = classes[0][most].rpartition("/")[2]  # classes of one name are listed with their parent
            found = names.get(f"{level}-{node}")
            name = None if found is None else found.name
            row = [level, node, len(own), label, f"{count / len(own):.2f}", name or ""]
            rows.append([*map(str, row), judged(name, label, above, known)])
    return rows


def summary(rows: list[list[str]]) -> Cells:
    table = [["level", "nodes", *JUDGEMENTS]]
    for level in sorted({row[0] for row in rows}):
        counts = Counter(row[-1] for row in rows if row[0] == level)
        table.append([level, str(counts.total()), *(str(counts[judgement]) for judgement in JUDGEMENTS)])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="+", type=Path, help=".npz files of `hirl embed` by the default encoder")
    parser.add_argument("--levels", nargs="+", type=int, help="nodes per level; by default for the number of images")
    parser.add_argument("--out", type=Path, default=Path("names"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tables = {}
    for path in given.features:
        with np.load(path, allow_pickle=False) as arrays:
            features, labels = torch.from_numpy(arrays["features"]).float(), torch.from_numpy(arrays["labels"])
            classes = [arrays[f"classes_{level}"].tolist() for level in range(labels.shape[1])]
        tree = POOLED_FEATURES(features, given.levels or levels_by_number(len(features)))
        rows = judged_nodes(tree, features, labels, classes)
        with (given.out / f"{path.stem}_nodes.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["level", "node", "images", "label", "share", "name", "judgement"], *rows])
        tables[path.stem] = summary(rows)
        write_tables(given.out, tables)
    print_tables(tables)


if __name__ == "__main__":
    main()
