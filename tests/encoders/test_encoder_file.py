"""Encoder files: metadata, hashes, and files that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import (
    EncoderMetadata,
    load_encoder,
    load_metadata,
    make_encoder,
    network_hash,
    save_encoder,
)
from hirl.features.open_encoder import open_encoder
from hirl.run import Run

METADATA = EncoderMetadata("resnet10t", {"channels": [8, 8, 16, 16]}, 16, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    encoder = make_backbone(METADATA.backbone, **METADATA.backbone_args)
    save_encoder(tmp_path / "encoder.safetensors", encoder, METADATA)
    return tmp_path / "encoder.safetensors"


def test_an_encoder_file_is_all_it_takes(file: Path) -> None:
    weights, metadata = load_encoder(file)
    assert metadata == METADATA
    images = torch.randn(2, 3, 16, 16)
    opened = open_encoder(file)
    assert torch.equal(make_encoder(weights, metadata, source="x")(images), opened.network(images))
    assert (opened.image_size, opened.channels, opened.mean) == (16, 3, (0.5, 0.5, 0.5))
    assert opened.sha256 == open_encoder(file).sha256
    assert not any(parameter.requires_grad for parameter in opened.network.parameters())


def test_the_same_encoder_has_the_same_bytes(file: Path) -> None:
    before = file.read_bytes()
    save_encoder(file, open_encoder(file).network, METADATA)
    assert file.read_bytes() == before


def test_files_from_elsewhere_have_no_metadata(file: Path, tmp_path: Path) -> None:
    weights, _ = load_encoder(file)
    for place, about in enumerate(({}, {"about": "not JSON"}, {"about": '{"format": "hirl encoder 1"}'})):
        other = tmp_path / f"{place}.safetensors"
        save_file(weights, other, metadata=about)
        assert load_metadata(other) is None
        with pytest.raises(ValueError, match="is not an encoder written by hirl: its metadata do not name the network"):
            load_encoder(other)


def test_a_truncated_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    for load in (load_encoder, load_metadata, open_encoder):
        with pytest.raises(ValueError, match=r"is not a safetensors file, or is truncated|is damaged"):
            load(file)


def test_a_run_without_an_encoder_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ValueError, match="has no encoder yet: training writes it after its last epoch"):
        _ = Run(tmp_path).encoder


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
