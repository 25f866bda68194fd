"""The model card of an exported encoder: how to load it, what was measured, settings, data and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from hirl.data.sources.escape import one_line
from hirl.export.network import Export
from hirl.features.open_encoder import Encoder
from hirl.runs.folder import RunFolder, versions
from hirl.runs.results import distinguishing_settings, list_results, tested_on
from hirl.terminal.figures import format_cell, with_kinds

FRONT = {"library_name": "timm", "pipeline_tag": "image-feature-extraction"}


def model_card(export: Export, folder: str, difference: float) -> str:
    """The text of README.md; it names nothing that was not read from the run."""
    run = export.encoder.run
    tags = ["image-feature-extraction", "timm", "self-supervised", *(["hirl"] if export.tree is not None else [])]
    front = yaml.safe_dump(FRONT | {"tags": tags}, sort_keys=False)
    parts = [f"---\n{front}---", f"# {one_line(folder)}", *_introduction(export), *_loading(export, folder)]
    if run is not None:
        parts += [*_results(run), *_settings(run)]
    parts += [
        "## Origin",
        f"Weights: `{one_line(export.encoder.name)}`, sha256 `{export.encoder.sha256}`.",
        _start(export.encoder),
        f"On random images the files here and torch differ by {difference:.1e} at most.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(export: Export) -> Iterator[str]:
    about, run = export.encoder.about, export.encoder.run
    width = export.network.encoder(export.random_images(1).float() / 255).shape[1]
    yield f"An image encoder, `{about.get('backbone')}`: images of {export.pixels.size} pixels to {width} features."
    if run is not None:
        yield (
            f"Trained without labels on {one_line(str(run.config['data']))} by `hirl`: {run.state}. HIRL is "
            "hierarchical image representation learning, [arXiv:2205.13159](https://arxiv.org/abs/2205.13159)."
        )


def _loading(export: Export, folder: str) -> Iterator[str]:
    name = one_line(folder)
    yield "## Load"
    yield (
        "```python\nimport timm\n\n"
        f'encoder = timm.create_model("local-dir:{name}", pretrained=True).eval()  # on the hub: "hf-hub:OWNER/NAME"\n'
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(encoder))\n"
        "features = encoder(transform(image)[None])  # image: an RGB image of Pillow\n```"
    )
    if export.tree is not None:
        levels = ", ".join(f"{count:,}" for count in export.tree.levels)
        yield (
            "`onnx/model.onnx` takes pixels (B, C, H, W) of uint8 and gives features, z⁰…zᴸ, the `path` of each image "
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
            rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    yield "## Results"
    yield "\n".join(rows)


def _settings(run: RunFolder) -> Iterator[str]:
    yield "## Settings"
    yield f"```yaml\n{yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)}```"


def _start(encoder: Encoder) -> str:
    """What training began from, and the versions of the libraries at its last start."""
    if encoder.run is None:
        known = "" if encoder.provenance is None else f"{encoder.provenance}. "
        return f"{known}Exported with {_versions(versions())}."
    begun = encoder.run.config["encoder"]
    first = "Trained from random weights" if begun is None else f"Trained from `{one_line(str(begun))}`"
    starts: list[dict[str, Any]] = encoder.run.starts()
    libraries = starts[-1].get("versions") if starts else None
    return f"{first}, with {_versions(libraries)}." if isinstance(libraries, dict) else f"{first}."


def _versions(known: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in known.items())


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
