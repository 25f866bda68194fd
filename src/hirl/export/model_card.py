"""The model card of an exported encoder: how to load it, what was measured, settings, data and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from hirl.data.sources.escape import one_line
from hirl.encoders.adapter import AdaptedNetwork
from hirl.export.network import Export
from hirl.features.open_encoder import Encoder
from hirl.runs.about import versions
from hirl.runs.folder import RunFolder
from hirl.runs.results import distinguishing_settings, list_results, tested_on
from hirl.terminal.figures import format_cell, with_kinds

TASK = "image-feature-extraction"
BAR = "\\|"  # in a cell of a table


def model_card(export: Export, folder: str, difference: float, *, of_timm: bool) -> str:
    """The text of README.md; it names nothing that was not read from the run. `of_timm`: whether timm loads it."""
    run, library = export.encoder.run, "timm" if of_timm else "onnx"
    tags = [TASK, library, *(["self-supervised"] if run is not None else []), *(["hirl"] if export.tree else [])]
    front = yaml.safe_dump({"library_name": library, "pipeline_tag": TASK, "tags": tags}, sort_keys=False)
    parts = [f"---\n{front}---", f"# {one_line(folder)}", *_introduction(export), "## Load"]
    parts += _timm(folder) if of_timm else _onnx(export)
    parts += _levels(export)
    if run is not None:
        settings = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        parts += [*_results(run), "## Settings", f"```yaml\n{settings}```"]
    parts += [
        "## Origin",
        f"Weights: `{one_line(export.encoder.name)}`, sha256 `{export.encoder.sha256}`.",
        _start(export.encoder),
        f"On random images the files here and torch differ by {difference:.1e} at most.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(export: Export) -> Iterator[str]:
    about, run = export.encoder.description, export.encoder.run
    width = export.network(export.random_images(1))["features"].shape[1]
    network = f"`{about['backbone']}`" if "backbone" in about else type(export.encoder.network).__name__
    adapted = ", frozen, with an adapter" if isinstance(export.encoder.network, AdaptedNetwork) else ""
    yield f"An image encoder, {network}{adapted}: images of {export.pixels.size} pixels to {width} features."
    if run is not None:
        data, how = one_line(str(run.config["data"])), "Adapted" if adapted else "Trained"
        yield (
            f"{how} without labels on {data} by `hirl`: {run.state}. HIRL is hierarchical image representation "
            "learning, [arXiv:2205.13159](https://arxiv.org/abs/2205.13159)."
        )


def _timm(folder: str) -> Iterator[str]:
    yield (
        "```python\nimport timm\n\n"
        f'encoder = timm.create_model("local-dir:{one_line(folder)}", pretrained=True).eval()  # on the hub: '
        '"hf-hub:OWNER/NAME"\n'
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(encoder))\n"
        "features = encoder(transform(image)[None])  # image: an RGB image of Pillow\n```"
    )


def _onnx(export: Export) -> Iterator[str]:
    pixels = export.pixels
    yield "timm and transformers have no such network; `onnx/model.onnx` holds all of it, normalisation included:"
    yield (
        "```python\nimport numpy as np\nimport onnxruntime\nfrom PIL import Image\n\n"
        'session = onnxruntime.InferenceSession("onnx/model.onnx")\n'
        f'image = Image.open("photo.jpg").convert("{"RGB" if pixels.channels == 3 else "L"}")\n'
        f"size = [int({pixels.resize} * side / min(image.size)) for side in image.size]\n"
        f"image = image.resize(size, Image.Resampling.{pixels.interpolation.upper()})\n"
        f"left, top = (round((side - {pixels.size}) / 2) for side in image.size)\n"
        f"image = image.crop((left, top, left + {pixels.size}, top + {pixels.size}))\n"
        f"images = np.asarray(image).reshape(1, {pixels.size}, {pixels.size}, -1).transpose(0, 3, 1, 2)\n"
        '(features,) = session.run(["features"], {"images": images})\n```'
    )
    if isinstance(export.encoder.network, AdaptedNetwork):
        yield (
            "`encoder.safetensors` holds it for hirl, every command of which takes it as an encoder: `hirl embed "
            "encoder.safetensors --data photos/ --out z.npz`."
        )


def _levels(export: Export) -> Iterator[str]:
    if export.tree is not None:
        levels = ", ".join(f"{count:,}" for count in export.tree.levels)
        given = ", ".join(name for name in export.outputs if name not in ("path", "confidence"))
        yield (
            f"`onnx/model.onnx` takes pixels (B, C, H, W) of uint8 and gives {given}, the `path` of each image "
            f"through a tree of {levels} nodes, fine to coarse, and its `confidence` per level: how much nearer the "
            "image is to this path than to the best one through another node. Names of nodes and preprocessing are in "
            'its metadata, `session.get_modelmeta().custom_metadata_map["hirl"]`, as JSON.'
        )


def _results(run: RunFolder) -> Iterator[str]:
    """A row per figure of every stored result."""
    results = list_results(run.results_folder) if run.results_folder.is_dir() else {}
    if not results:
        return
    settings = distinguishing_settings(results)
    rows = ["| task | images | figure | value |", "|---|---|---|---|"]
    for file, result in results.items():
        task = " ".join(filter(None, (str(result["protocol"].get("task")), settings[file])))
        for name, value in with_kinds(result["headline"], result["kinds"].get("headline", {})).items():
            cells = (task, tested_on(result), str(name), format_cell(value))
            rows.append(f"| {' | '.join(one_line(cell).replace('|', BAR) for cell in cells)} |")
    yield "## Results"
    yield "\n".join(rows)


def _start(encoder: Encoder) -> str:
    """What training began from, and the versions of the libraries at its last start."""
    if encoder.run is None:
        known = "" if encoder.provenance is None else f"{encoder.provenance}. "
        return f"{known}Exported with {_versions(versions())}."
    begun, origin = encoder.run.config["encoder"], encoder.run.origin
    first = "Trained from random weights" if begun is None else f"Trained from `{one_line(str(begun))}`"
    first += "" if origin is None else f" ({one_line(str(origin))})"
    starts: list[dict[str, Any]] = encoder.run.launches()
    libraries = starts[-1].get("versions") if starts else None
    return f"{first}, with {_versions(libraries)}." if isinstance(libraries, dict) else f"{first}."


def _versions(known: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in known.items())
