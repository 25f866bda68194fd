"""Encoder files: hashes, metadata, and files that are not what they should be."""

from __future__ import annotations

import torch

from hirl.runs.encoder_file import network_hash


def test_a_hash_covers_weights_and_names_in_any_order() -> None:
    weights = {"a": torch.ones(2), "b": torch.tensor(3)}
    same = {"b": torch.tensor(3), "a": torch.ones(2)}
    assert network_hash(weights, "resnet") == network_hash(same, "resnet")
    others = [
        network_hash(weights, "vit"),
        network_hash({"a": torch.ones(2), "c": torch.tensor(3)}, "resnet"),
        network_hash({"a": torch.ones(2, 1), "b": torch.tensor(3)}, "resnet"),
        network_hash({"a": torch.ones(2).bfloat16(), "b": torch.tensor(3)}, "resnet"),
        network_hash({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3)}, "resnet"),
    ]
    assert len({network_hash(weights, "resnet"), *others}) == 6
