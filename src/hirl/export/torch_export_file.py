"""`--to torch-export`: one .pt2 file that torch.export.load opens without the classes of the network."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from hirl.export.comparison import compare_with_torch
from hirl.export.network import Export
from hirl.files import atomic_write

METADATA_FILE = "hirl.json"  # inside the .pt2 file


def write_torch_export(export: Export, out: Path) -> float:
    """Write the file, and return the largest difference between the loaded program and the network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Two images: torch takes a batch of one for a fixed size.
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.export.export(export.network, (export.random_images(2),), dynamic_shapes=shapes)
        with atomic_write(out) as aside:
            with aside.open("wb") as file:
                torch.export.save(program, file, extra_files={METADATA_FILE: export.metadata()})
            with aside.open("rb") as file:
                loaded = torch.export.load(file).module()
            return compare_with_torch(export, loaded, "torch.export")
