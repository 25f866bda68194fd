"""Suggested names of nodes, from labels, predicted classes and files, against trees whose images are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from hirl.encoders.embedded import ImageNetClassifier
from hirl.explore.collection import Collection
from hirl.explore.node_names import (
    CLASSES,
    FILES,
    LABELS,
    Suggestion,
    class_names,
    kinds_of,
    label_names,
    path_terms,
    photo_month,
    suggest_names,
    term_names,
)
from hirl.hierarchy.tree import PrototypeTree


def tree_of(leaves: list[int], parents: list[int]) -> PrototypeTree:
    """Two levels with the given leaf of every image and parent of every leaf; prototypes do not matter here."""
    fine, coarse = torch.eye(len(parents)), torch.eye(len(parents))[: max(parents) + 1]
    return PrototypeTree((fine, coarse), (torch.tensor(parents),), torch.tensor(leaves))


TREE = tree_of([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 1])


def test_labels_name_nodes_at_the_finest_level_that_most_images_share() -> None:
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [4, 1]])
    found = label_names(TREE, labels, (("tabby", "Persian", "pug", "boxer", "beagle"), ("cat", "dog")))
    assert found == {
        node: Suggestion(name, LABELS)
        for node, name in {"0-0": "tabby", "0-1": "Persian", "0-2": "dog", "1-0": "cat", "1-1": "dog"}.items()
    }


def classifier(names: list[str], definitions: list[str]) -> ImageNetClassifier:
    """Feature i is the logit of class i."""
    return ImageNetClassifier(torch.eye(len(names)), torch.zeros(len(names)), tuple(names), tuple(definitions))


def sure(classes: list[int], count: int) -> Tensor:
    return 20 * torch.eye(count)[classes]


def test_predicted_classes_name_leaves_and_their_kind_or_a_pair_the_nodes_above() -> None:
    names = [
        *(f"{name} dog" for name in ("red", "blue", "grey", "small", "big")),
        "pizza, pie",
        "lemon",
        "barn",
        "sock",
        "bee",
    ]
    definitions = ["a breed of dog with a tail"] * 5 + ["a dish"] * 5
    leaves = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, *[8] * 16]
    predicted = [0, 0, 1, 1, 2, 2, 3, 3, 5, 5, 6, 6, 7, 7, 8, 8, *[9] * 16]
    tree = tree_of(leaves, [0, 0, 0, 0, 1, 1, 1, 1, 2])
    found = class_names(tree, sure(predicted, 10), classifier(names, definitions))
    leaves_called = ["red dog", "blue dog", "grey dog", "small dog", "pizza", "lemon", "barn", "sock"]
    assert {node: suggestion.name for node, suggestion in found.items()} == {
        f"0-{leaf}": name for leaf, name in enumerate(leaves_called)
    } | {"1-0": "dog", "1-1": "pizza, lemon"}  # half of all images show a bee: it says nothing about a node
    assert {suggestion.origin for suggestion in found.values()} == {CLASSES}


def test_a_leaf_with_two_classes_gets_no_name_but_the_node_above_has_both() -> None:
    tree = tree_of([*[0] * 4, *[1] * 4, *[2] * 24], [0, 0, 1])
    model = classifier(["pot", "lemon", "ant", "owl", "bee"], ["a vessel", "a fruit", "an insect", "a bird", "a pest"])
    found = class_names(tree, sure([0, 1, 2, 3, 0, 1, 2, 3, *[4] * 24], 5), model)  # a quarter each
    assert {node: suggestion.name for node, suggestion in found.items()} == {"1-0": "pot, lemon"}


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])  # features of larger views are shorter, and logits with them
@pytest.mark.parametrize(("unknown", "names"), [((2, 4), {"0-0": "pot"}), ((2, 9), {"0-0": "pot"}), ((1, 9), {})])
def test_images_that_a_classifier_does_not_know_get_no_name_even_if_it_is_sure(
    scale: float, unknown: tuple[int, int], names: dict[str, str]
) -> None:
    model = classifier(["pot", "lemon", "bee"], ["a vessel", "a fruit", "an insect"])
    model = model._replace(weight=F.pad(model.weight, (0, 1)), familiar=0.9)  # no class has the last feature
    features = F.pad(sure([0, 0, 1, 1, 2, 2, 2, 2, 2], 3), (0, 1))
    features[slice(*unknown), 3] = 20
    tree = tree_of([0, 0, 1, 1, 2, 2, 2, 2, 2], [0, 0, 1])
    found = class_names(tree, scale * features, model)
    assert {node: suggestion.name for node, suggestion in found.items()} == names


def test_what_a_classifier_sees_everywhere_names_nothing() -> None:
    model = classifier(["pot", "lemon"], ["a vessel", "a fruit"])
    assert class_names(TREE, sure([0] * 9, 2), model) == {}


@pytest.mark.parametrize(
    ("names", "definition", "kinds"),
    [
        ("Persian cat", "a long-haired breed of cat", {"cat"}),
        ("Chihuahua", "an old breed of tiny short-haired dog with protruding eyes from Mexico", {"dog"}),
        ("banana", "elongated crescent-shaped yellow fruit with soft sweet flesh", {"fruit"}),
        ("ox", "", set()),
    ],
)
def test_the_kind_of_a_class(names: str, definition: str, kinds: set[str]) -> None:
    assert kinds_of(names, definition) == kinds


def test_files_name_nodes_by_terms_that_others_lack() -> None:
    paths = [
        "trip/beach 01.jpg",
        "trip/beach 02.jpg",
        "trip/IMG_3.jpg",
        *["trip/dog_7.jpg"] * 3,
        *["trip/DSC_9.jpg"] * 3,
    ]
    terms = [path_terms(path) for path in paths]
    assert terms[0] == {"trip", "beach"}
    assert terms[-1] == {"trip"}
    found = term_names(TREE, terms, FILES)
    assert found == {"0-0": Suggestion("beach", FILES), "0-1": Suggestion("dog", FILES)}


def test_a_term_of_few_files_does_not_name_a_node_whose_other_files_have_no_terms() -> None:
    paths = [*["photos/IMG_1.jpg"] * 2, "photos/crop_2.jpg", *["photos/IMG_3.jpg"] * 5, "photos/crop_4.jpg"]
    assert path_terms(paths[0]) == set()
    assert term_names(TREE, [path_terms(path) for path in paths], FILES) == {}


def test_the_month_of_a_photo(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[306] = "2019:07:04 12:00:00"
    Image.new("RGB", (8, 8)).save(tmp_path / "dated.jpg", exif=exif)
    Image.new("RGB", (8, 8)).save(tmp_path / "plain.png")
    (tmp_path / "broken.jpg").write_bytes(b"nothing")
    assert [photo_month(str(tmp_path / name)) for name in ("dated.jpg", "plain.png", "broken.jpg", "none.jpg")] == [
        "July 2019",
        None,
        None,
        None,
    ]


def test_a_collection_with_labels_is_named_by_them(collection: Collection) -> None:
    found = suggest_names(collection, collection.typicality())
    assert {suggestion.origin for suggestion in found.values()} <= {LABELS, FILES}
    assert found["2-0"].name in collection.images.label_names[0]
