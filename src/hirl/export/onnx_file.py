"""`--to onnx`: one file for onnxruntime, uint8 pixels in, with preprocessing and names of nodes in its metadata."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hirl.export.comparison import compare_with_torch
from hirl.export.network import Export
from hirl.files import atomic_write

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")  # of the extra `export`
METADATA_KEY = "hirl"
LARGEST_FILE = 1 << 31  # bytes that protobuf takes; more needs a second file


def write_onnx(export: Export, out: Path) -> float:
    """Write the file, and return the largest difference between onnxruntime and torch."""
    missing = [library for library in LIBRARIES if find_spec(library) is None]
    if missing:
        raise ValueError(f"ONNX needs {' and '.join(missing)}, not installed here: pip install 'hirl[export]'")
    import onnxruntime

    tensors = [value for value in export.network.state_dict().values() if isinstance(value, Tensor)]
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if weights >= LARGEST_FILE:
        raise ValueError(f"the weights are {weights / 2**30:.1f} GB, but one ONNX file holds 2: export to torch-export")
    with _quiet():
        program: Any = torch.onnx.export(
            export.network,
            (export.random_images(2),),
            dynamo=True,
            dynamic_shapes=({0: "batch"},),
            input_names=["images"],
            output_names=list(export.outputs),
            verbose=False,
        )
        program.optimize()
    program.model.metadata_props[METADATA_KEY] = export.metadata()
    with atomic_write(out) as aside:
        program.save(aside, external_data=False)
        session = onnxruntime.InferenceSession(aside.read_bytes(), providers=["CPUExecutionProvider"])

        def run(pixels: Tensor) -> dict[str, Any]:
            return dict(zip(export.outputs, session.run(None, {"images": pixels.numpy()}), strict=True))

        return compare_with_torch(export, run, "onnxruntime")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints its steps and warns of what it does itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
