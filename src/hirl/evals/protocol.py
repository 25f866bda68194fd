"""The protocol of a result: everything its figures depend on, as plain data; storing and finding results by it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hirl.config import class_path, to_plain
from hirl.data.sources.identity import is_identified
from hirl.evals.base import Evaluation, Result, Subject
from hirl.features.extractor import Extractor
from hirl.runs.folder import RunFolder
from hirl.runs.results import find_result, result_file, write_result
from hirl.terminal.figures import kinds, with_kinds

CHUNK = 1 << 24  # bytes read at a time


def protocol_of(task: Evaluation, subject: Subject, extractor: Extractor) -> dict[str, Any]:
    """Two evaluations with equal protocols give the same figures."""
    encoder = extractor.encoder
    found: dict[str, Any] = {
        "task": task.name,
        "class": class_path(type(task)),
        "arguments": to_plain(task.arguments),
        "seed": subject.seed,
        "encoder": {"sha256": encoder.sha256, "method": subject.method},
        "images": {"size": subject.image_size, "interpolation": subject.interpolation} | asdict(subject.normalisation),
        "data": {
            part: extractor.identity(images) | {"classes": [len(names) for names in images.label_names]}
            for part, images in sorted(subject.parts.items())
        },
    }
    if extractor.preprocessing.crop is not None:  # None is not written: earlier results without it are still found
        found["images"]["crop"] = extractor.preprocessing.crop
    if task.revision > 1:  # the first is not written: results stored before there were revisions are still found
        found["revision"] = task.revision
    if task.needs.run and encoder.run is not None:
        found["run"] = _hashes(encoder.run)
    return found


def _hashes(run: RunFolder) -> dict[str, str]:
    """Hashes of the files that hold the tree and the heads."""
    found = {}
    for file in (run.tree_file, run.checkpoint_file):
        if file.is_file():
            digest = hashlib.sha256()
            with file.open("rb") as opened:
                while block := opened.read(CHUNK):
                    digest.update(block)
            found[file.name] = digest.hexdigest()
    return found


@dataclass(frozen=True)
class Record:
    """Where the result of a protocol is stored, in a folder of results."""

    results: Path
    protocol: dict[str, Any]

    @property
    def folder(self) -> Path | None:
        """The folder for files beside the result; None if the content of the images is unknown."""
        identified = all(map(is_identified, self.protocol["data"].values()))
        return result_file(self.results, self.protocol).with_suffix("") if identified else None

    def write(self, result: Result, extractor: Extractor) -> None:
        columns: dict[str, str] = {}
        for row in result.rows:
            columns |= kinds(row)
        write_result(
            self.results,
            self.protocol,
            {
                "headline": dict(result.headline),
                "rows": [dict(row) for row in result.rows],
                "chosen": result.chosen,
                "kinds": {"headline": kinds(result.headline), "rows": columns},
                "encoder": {"name": extractor.encoder.name} | extractor.encoder.description,
                "device": str(extractor.preprocessing.device),
            },
        )

    def find(self) -> Result | None:
        """The result stored for exactly this protocol, or None. Images of unknown content match nothing."""
        found = None if self.folder is None else find_result(self.results, self.protocol)
        if found is None or not {"headline", "rows", "chosen", "kinds"} <= found.keys():
            return None
        kinds_of: Mapping[str, Mapping[str, str]] = found["kinds"]
        return Result(
            headline=with_kinds(found["headline"], kinds_of["headline"]),
            rows=[with_kinds(row, kinds_of["rows"]) for row in found["rows"]],
            chosen=found["chosen"],
        )
