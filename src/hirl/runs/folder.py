"""A run folder: what a run was told, how it went and what it made. Nothing else is passed between commands."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hirl.config import upgrade
from hirl.files import atomic_write

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hirl.evals.base import Evaluation, Result
    from hirl.hierarchy.tree import PrototypeTree

LIBRARIES = ("hirl", "torch", "torchvision", "timm", "lightly", "pytorch-lightning", "numpy")
ENCODER_FORMAT = "hirl encoder 1"


class Run:
    """One run's folder.

    config.yaml        the resolved configuration; `hirl pretrain --config` takes it
    about.json         command line, versions and machine, one entry each time the run was started
    metrics.jsonl      one line a report
    last.ckpt          the state after the last step that was saved
    log.txt            what the run said, with the time
    encoder.safetensors, tree.safetensors, skipped.txt
    results/           one file an evaluation: figures and protocol
    features/          what the encoder makes of images that were evaluated; may be deleted at any time
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    config_file = property(lambda self: self.folder / "config.yaml")
    about_file = property(lambda self: self.folder / "about.json")
    metrics_file = property(lambda self: self.folder / "metrics.jsonl")
    checkpoint_file = property(lambda self: self.folder / "last.ckpt")
    encoder_file = property(lambda self: self.folder / "encoder.safetensors")
    tree_file = property(lambda self: self.folder / "tree.safetensors")
    log_file = property(lambda self: self.folder / "log.txt")
    skipped_file = property(lambda self: self.folder / "skipped.txt")
    results_folder = property(lambda self: self.folder / "results")
    features_folder = property(lambda self: self.folder / "features")

    @property
    def exists(self) -> bool:
        return self.config_file.is_file()

    @property
    def config(self) -> dict[str, Any]:
        if not self.exists:
            raise ValueError(f"{str(self.folder)!r} is no run: it has no config.yaml")
        return upgrade(yaml.safe_load(self.config_file.read_text(encoding="utf-8")))

    @property
    def finished(self) -> bool:
        """Whether the last report is that of the last step."""
        ends = [line for line in self.metrics() if line.get("finished")]
        return bool(ends)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The reports, oldest first; a last line that was cut off in the writing is left out."""
        if not self.metrics_file.is_file():
            return
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def begin(self, config: dict[str, Any]) -> None:
        """Writes down the configuration, or checks that a run with a checkpoint has the same; to be called when locked.

        One that was refused or stopped before its first checkpoint has nothing to lose: it begins anew.
        """
        if self.exists and self.checkpoint_file.is_file():
            changed = differences(self.config, config)
            if changed:
                raise ValueError(
                    f"{str(self.folder)!r} holds a run of another configuration ({'; '.join(changed)}): "
                    "name another folder, or give the same settings to continue it"
                )
        else:
            with atomic_write(self.config_file) as aside:
                aside.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        for left_over in self.folder.glob(".*.part"):  # of a process that was killed while it wrote
            left_over.unlink()
        started = json.loads(self.about_file.read_text()) if self.about_file.is_file() else []
        started.append(
            {
                "command": sys.argv,
                "python": platform.python_version(),
                "versions": {name: version(name) for name in LIBRARIES},
                "machine": platform.platform(),
            }
        )
        with atomic_write(self.about_file) as aside:
            aside.write_text(json.dumps(started, indent=1), encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this process; a second one is told so."""
        if self.folder.is_file():
            raise ValueError(f"{str(self.folder)!r} is a file, not a run folder: name another one")
        if not self.exists and self.folder.is_dir() and any(entry.name != ".lock" for entry in self.folder.iterdir()):
            raise ValueError(f"the folder {str(self.folder)!r} is not empty and holds no run: name another one")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"another process is training in {str(self.folder)!r}: wait for it or stop it"
                ) from error
            yield

    def forget_after(self, step: int) -> None:
        """Drops reports of steps that a killed run had made after its last checkpoint: they come again."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        with atomic_write(self.metrics_file) as aside:
            aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def report(self, line: dict[str, Any]) -> None:
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def log(self, words: str) -> None:
        """Puts down what the run says, line by line with the time."""
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{now}  {line}\n" for line in words.splitlines()))

    def save_encoder(self, encoder: nn.Module, about: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
        with atomic_write(self.encoder_file) as aside:
            # One key: safetensors writes several in a random order, and the file should have the same bytes each time.
            save_file(weights, aside, metadata={"about": json.dumps({"format": ENCODER_FORMAT} | about)})

    @property
    def encoder(self) -> nn.Module:
        """The trained encoder: images (B, C, H, W), normalised as in training, to features."""
        weights, about = self.encoder_weights()
        from hirl.backbones import make_backbone

        encoder = make_backbone(about["backbone"], **about["backbone_args"])
        encoder.load_state_dict(weights, strict=True)
        return encoder.eval()

    def encoder_weights(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        from safetensors import SafetensorError, safe_open

        if not self.encoder_file.is_file():
            raise ValueError(f"{str(self.folder)!r} has no encoder yet")
        try:
            with safe_open(self.encoder_file, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("about", "{}"))
                return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 (it is no dict)
        except SafetensorError as error:
            raise ValueError(f"{str(self.encoder_file)!r} is no encoder, or is cut short: {error}") from error

    @property
    def tree(self) -> PrototypeTree:
        from hirl.hierarchy.tree import PrototypeTree

        if not self.tree_file.is_file():
            raise ValueError(f"{str(self.folder)!r} has no tree: it is a baseline, or has not reached its first one")
        return PrototypeTree.load(self.tree_file)

    def evaluate(self, *tasks: str | Evaluation, **options: Any) -> dict[str, Result]:
        """The figures of the encoder by task; see `hirl.evaluate` for the options."""
        from hirl.evals.evaluate import evaluate

        return evaluate(self, *tasks, **options)


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Where two configurations differ, each as `name: old → new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [
            line
            for key in keys
            for line in differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return [] if list(old) == list(new) else [f"{name}: {list(old)} → {list(new)}"]
    return [] if old == new else [f"{name}: {old} → {new}"]


def folder_name(name: str) -> str:
    """The last part of the path or name of a set of images, as a folder may be called anywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name).strip("-.") or "images"
