"""Where an evaluation's figures are written, and the protocol beside them."""

from __future__ import annotations

import dataclasses
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Evaluation, Result, Subject
from hirl.files import atomic_write
from hirl.runs.folder import LIBRARIES, Run, folder_name
from hirl.runs.open_encoder import Encoder


def results_folder(run: Run | None, out: str | os.PathLike[str] | None, data: Any, train: ImageSet) -> Path | None:
    """`out`, or a run's results; those on other images than its own, in a folder named after them. None: nowhere."""
    if out is not None:
        folder = Path(out)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"cannot write the figures to {str(folder)!r}: it is no folder")
    elif run is not None:
        named = os.fspath(data) if isinstance(data, str | os.PathLike) else None
        own = data is None or str(run.config["data"]) in (named, train.name)
        folder = run.results_folder if own else run.results_folder / folder_name(named or train.name)
    else:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_result(folder: Path, task: Evaluation, result: Result, subject: Subject, opened: Encoder) -> None:
    """The figures and all that they depend on, as TASK.json; `opened` is what the subject's encoder comes from."""
    protocol = {
        "task": task.name,
        "arguments": task.arguments,
        "chosen": result.chosen,
        "headline": result.headline,
        "rows": result.rows,
        "seed": subject.seed,
        "encoder": {"name": opened.name, "sha256": opened.sha256, "method": subject.method} | opened.about,
        "images": {"size": subject.image_size} | dataclasses.asdict(subject.normalisation),
        "data": {"train": _described(subject.train), "test": _described(subject.test)},
        "versions": {name: version(name) for name in (*LIBRARIES, "scikit-learn", "scipy")},
    }
    with atomic_write(folder / f"{task.name}.json") as aside:
        aside.write_text(json.dumps(protocol, indent=1, ensure_ascii=False), encoding="utf-8")


def _described(images: ImageSet) -> dict[str, Any]:
    return {"name": images.name, "images": len(images), "classes": [len(names) for names in images.label_names]}
