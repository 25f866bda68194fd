"""Suggests names for the nodes of a tree: from labels, predicted classes, file names or dates.

A suggestion is a term that many images of a node have and other images do not. Its origin is shown, and a name given by
the user always takes precedence.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hirl.encoders.embedded import PROVENANCE, ImageNetClassifier, embedded_classifier
from hirl.explore.collection import Collection
from hirl.hierarchy.groups import place_in_group
from hirl.hierarchy.tree import PrototypeTree

LABELS, CLASSES, FILES, DATES = "labels", "predicted ImageNet classes", "file names", "dates of the photos"
MOST_TERMS = 2000  # of files, the most frequent ones
TAKEN, CHANGED, CAMERA = 36867, 306, 34665  # EXIF: DateTimeOriginal in the camera's block, DateTime
DATED = 5  # images per leaf whose date is read: the most typical ones
# A term names a node if at least this share of its images has it, and this many times the share among all images.
SHARE, LIFT = 0.5, 1.5
# Predicted classes: a class, a kind of several classes, or the first two classes together name a node from these mean
# probabilities over its images on, if the mean over all images is this many times lower: a class predicted everywhere
# is what the classifier falls back on for unknown kinds of images.
CLASS_SHARE, KIND_SHARE, PAIR_SHARE, CLASS_LIFT, KIND_CLASSES = 0.3, 0.25, 0.3, 3.0, 5
# A classifier that is familiar with fewer of the images than this names none: the names would mostly be accidents.
FAMILIAR_SHARE = 0.2
# The head noun of a definition comes before the first of these.
FURTHER = re.compile(
    r"[,;:()]|\b(?:with|having|used|that|which|from|in|for|on|to|made|consisting|native|held|and|or|by|at)\b"
)
NO_KINDS = {
    "any", "breed", "kind", "type", "variety", "species", "one", "genus", "family", "piece", "worn", "found", "region",
}  # fmt: skip


class Suggestion(NamedTuple):
    """A name for a node, and what it was taken from."""

    name: str
    origin: str


def suggest_names(collection: Collection, typical: Tensor) -> dict[str, Suggestion]:
    """Names of nodes by level and number ("2-17"), from the first source that has one; `typical` (n, L)."""
    sources: list[Callable[[], dict[str, Suggestion]]] = []
    images, tree = collection.images, collection.tree
    if images.labels is not None:
        labels = images.labels
        sources.append(lambda: label_names(tree, labels, images.label_names))
    if collection.encoder is not None and collection.encoder.provenance == PROVENANCE:
        sources.append(lambda: class_names(tree, collection.features, embedded_classifier()))
    if images.has_files:
        sources.append(lambda: term_names(tree, [path_terms(path) for path in collection.paths], FILES))
        sources.append(lambda: _date_names(collection, typical))
    found: dict[str, Suggestion] = {}
    count = sum(int((tree.sizes(level) > 0).sum()) for level in range(len(tree.levels)))
    for source in sources:
        if len(found) < count:
            found = source() | found
    return found


def label_names(tree: PrototypeTree, labels: Tensor, names: Sequence[Sequence[str]]) -> dict[str, Suggestion]:
    """The majority class, at the finest label level that has one; `labels` (n, levels)."""
    found: dict[str, Suggestion] = {}
    for column, classes in zip(labels.T, names, strict=True):
        for level, mass in enumerate(_per_level(tree, _leaf_sums(tree, column, len(classes)))):
            share, which = (mass / mass.sum(1, keepdim=True).clamp(min=1)).max(1)
            for node in (share > SHARE).nonzero().flatten().tolist():
                found.setdefault(f"{level}-{node}", Suggestion(classes[int(which[node])], LABELS))
    return found


def class_names(tree: PrototypeTree, features: Tensor, classifier: ImageNetClassifier) -> dict[str, Suggestion]:
    """The class that a classifier predicts for a node's images; else a kind that its classes share; else two classes.

    Nodes whose images are on average unlike its training images get no name, since it may be confident all the same,
    and no node gets one if most images are (docs/log.md, trial 42). Leaves get no name of two classes: two in three
    such pairs were wrong (trial 41).
    """
    sums = torch.zeros(tree.levels[0], len(classifier.names))
    logits_and_lengths = torch.zeros(tree.levels[0], 2)
    for some in torch.arange(len(features)).split(4096):
        rows = features[some].float()
        logits = rows @ classifier.weight.float().T + classifier.bias.float()
        sums.index_add_(0, tree.leaves[some], logits.softmax(1))
        logits_and_lengths.index_add_(0, tree.leaves[some], torch.stack([logits.amax(1), rows.norm(dim=1)], dim=1))
    familiar = [of[:, 0] >= classifier.familiar * of[:, 1] for of in _per_level(tree, logits_and_lengths)]
    if familiar[0][tree.leaves].float().mean() < FAMILIAR_SHARE:
        return {}
    titles = [name.split(",")[0] for name in classifier.names]
    terms, has_kind = _kinds(classifier)  # (C, K)
    found: dict[str, Suggestion] = {}
    overall = sums.sum(0) / sums.sum()
    for level, mass in enumerate(_per_level(tree, sums)):
        images = mass.sum(1, keepdim=True).clamp(min=1e-6)
        kinds = shared_terms(mass @ has_kind, images[:, 0], least=KIND_SHARE, lift=CLASS_LIFT).tolist()
        share, which = (of[:, :2] for of in (mass / images).sort(dim=1, descending=True, stable=True))
        special = (share >= CLASS_LIFT * overall[which]).tolist()
        for node, ((first, second), (p, q)) in enumerate(zip(which.tolist(), share.tolist(), strict=True)):
            if not familiar[level][node]:
                continue
            if p >= CLASS_SHARE and special[node][0]:
                name = titles[first]
            elif kinds[node] >= 0:
                name = terms[kinds[node]]
            elif level and p + q >= PAIR_SHARE and all(special[node]):
                name = f"{titles[first]}, {titles[second]}"
            else:
                continue
            found[f"{level}-{node}"] = Suggestion(name, CLASSES)
    return found


def term_names(tree: PrototypeTree, terms: Sequence[set[str] | None], origin: str) -> dict[str, Suggestion]:
    """The term that most images of a node have; `terms` of each image, None if they were not looked up."""
    counts = Counter(term for some in terms for term in some or ())
    frequent = [term for term, count in counts.most_common(MOST_TERMS) if count > 1]
    place = {term: number for number, term in enumerate(frequent)}
    pairs = [(image, place[term]) for image, some in enumerate(terms) for term in some or () if term in place]
    if not pairs:
        return {}
    image, term = torch.tensor(pairs).T
    sums = torch.zeros(tree.levels[0], len(frequent) + 1)
    sums.index_put_((tree.leaves[image], term), torch.ones(len(pairs)), accumulate=True)
    known = torch.tensor([some is not None for some in terms])
    sums[:, -1] = torch.bincount(tree.leaves[known], minlength=len(sums)).float()
    return {
        f"{level}-{node}": Suggestion(frequent[int(best[node])], origin)
        for level, mass in enumerate(_per_level(tree, sums))
        for best in [shared_terms(mass[:, :-1], mass[:, -1])]
        for node in (best >= 0).nonzero().flatten().tolist()
    }


def shared_terms(mass: Tensor, images: Tensor, *, least: float = SHARE, lift: float = LIFT) -> Tensor:
    """Return the most characteristic term (M,) of each node, or −1; `mass` (M, V) of its `images` (M,) have each term.

    Of the terms that more than a share `least` of a node's images has, `lift` times the share of all images or more, it
    is the one with the largest share · log(lift), as in tf-idf.
    """
    if mass.shape[1] == 0:
        return torch.full((len(mass),), -1)
    share = mass / images[:, None].clamp(min=1e-6)
    more = share / (mass.sum(0) / images.sum().clamp(min=1e-6)).clamp(min=1e-6)
    score = torch.where((share > least) & (more >= lift), share * more.clamp(min=1e-6).log(), -1.0)
    best, which = score.max(1)
    return torch.where(best > 0, which, -1)


def path_terms(path: str) -> set[str]:
    """The terms in the names of a file and its folders, without numbers and names that cameras give."""
    stem = path.rpartition(".")[0] or path
    found = re.findall(r"[^\W\d_]{3,}", stem.casefold())
    return set(found) - {"img", "dsc", "dcim", "image", "images", "photo", "photos", "pxl", "jpg", "jpeg", "png"}


def _date_names(collection: Collection, typical: Tensor) -> dict[str, Suggestion]:
    places = place_in_group(collection.tree.leaves, typical[:, 0].argsort(descending=True)).tolist()
    files = zip(collection.paths, places, strict=True)
    terms = [set(filter(None, [photo_month(path)])) if place < DATED else None for path, place in files]
    return term_names(collection.tree, terms, DATES)


def _kinds(classifier: ImageNetClassifier) -> tuple[list[str], Tensor]:
    """The kinds that comprise several classes, such as dog or fruit, and a mask (C, K) of their classes."""
    kinds = [kinds_of(*texts) for texts in zip(classifier.names, classifier.definitions, strict=True)]
    terms = [kind for kind, count in Counter(k for some in kinds for k in some).items() if count >= KIND_CLASSES]
    has = torch.tensor([[term in some for term in terms] for some in kinds])
    return terms, has.float().view(len(kinds), len(terms))


def kinds_of(names: str, definition: str) -> set[str]:
    """The last words of the names and of the definition's first phrases: cat for "Persian cat", "a breed of cat"."""
    phrases = [name for name in names.split(", ") if " " in name]
    phrases += FURTHER.split(definition, maxsplit=1)[0].split(" of ")
    last = {phrase.split()[-1] for phrase in phrases if phrase.strip()}
    return {term for term in last if term.isalpha() and term.islower() and not term.endswith(("ed", "ly"))} - NO_KINDS


def _leaf_sums(tree: PrototypeTree, values: Tensor, count: int) -> Tensor:
    """(M_1, V): how many images of each leaf have each value (n,)."""
    place = tree.leaves * count + values
    return torch.bincount(place[values >= 0], minlength=tree.levels[0] * count).view(-1, count).float()


def _per_level(tree: PrototypeTree, sums: Tensor) -> Iterable[Tensor]:
    """(M_l, V) of every level, fine → coarse, from those of the leaves."""
    yield sums
    for parents, size in zip(tree.parents, tree.levels[1:], strict=True):
        sums = sums.new_zeros(size, sums.shape[1]).index_add_(0, parents, sums)
        yield sums


def photo_month(path: str) -> str | None:
    """The month of a photo, such as "July 2019"; None if the file has no date."""
    from PIL import Image

    try:
        with Image.open(Path(path)) as image:
            exif = image.getexif()
            text = str(exif.get_ifd(CAMERA).get(TAKEN) or exif.get(CHANGED) or "")
        year, month = (int(part) for part in text.split(":")[:2])
        return f"{calendar.month_name[month]} {year}" if year > 0 and 1 <= month <= 12 else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
