"""A run folder: a run's configuration, progress and output. Nothing else is passed between commands."""

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


class Run:
    """One run's folder.

    config.yaml        the resolved configuration; `hirl pretrain --config` takes it
    about.json         command line, versions and machine, one entry per start
    metrics.jsonl      one line per report
    last.ckpt          the state after the last step that was saved
    log.txt            the run's messages, with the time
    encoder.safetensors, tree.safetensors, skipped.txt
    results/           one file per task and protocol: figures with their protocol
    features/          cached features of evaluated images; may be deleted at any time
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
        """The resolved configuration as this version writes it, whichever version wrote the file."""
        if not self.exists:
            raise ValueError(f"{str(self.folder)!r} is not a run folder: it has no config.yaml")
        try:
            options = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{str(self.config_file)!r} is damaged: it is not a YAML file ({reason})") from error
        if not isinstance(options, dict):
            raise ValueError(f"{str(self.config_file)!r} is damaged: it does not hold the options of a run")
        return upgrade(options)

    @property
    def finished(self) -> bool:
        """Whether the last step was done and reported."""
        return any(line.get("finished") for line in self.metrics())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The reports, oldest first, up to a line that was cut off by a kill."""
        if not self.metrics_file.is_file():
            return
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def begin(self, config: dict[str, Any]) -> None:
        """Write the configuration, or check that it is that of the run to continue. The folder must be locked.

        A run that was refused or stopped before its first checkpoint has nothing to lose: it starts again.
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
                "versions": versions(),
                "machine": platform.platform(),
            }
        )
        with atomic_write(self.about_file) as aside:
            aside.write_text(json.dumps(started, indent=1), encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; a second process gets a ValueError."""
        if self.folder.is_file():
            raise ValueError(f"{str(self.folder)!r} is a file, not a run folder: name another one")
        if not self.exists and self.folder.is_dir() and any(entry.name != ".lock" for entry in self.folder.iterdir()):
            raise ValueError(f"the folder {str(self.folder)!r} is not empty and not a run folder: name another one")
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
        """Drop reports of steps after the last checkpoint: a continued run repeats them."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        with atomic_write(self.metrics_file) as aside:
            aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def report(self, line: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def log(self, message: str) -> None:
        """Append a message to log.txt, each line with the time."""
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{now}  {line}\n" for line in message.splitlines()))

    def save_encoder(self, encoder: nn.Module, metadata: dict[str, Any]) -> None:
        """Write encoder.safetensors; `metadata`: backbone, backbone_args, image_size, mean and std."""
        from hirl.runs.encoder_file import save_encoder

        save_encoder(self.encoder_file, encoder, metadata)

    @property
    def encoder(self) -> nn.Module:
        """The trained encoder in eval mode: images (B, C, H, W), normalised as in training → features (B, width)."""
        from hirl.runs.encoder_file import make_encoder

        return make_encoder(*self.encoder_weights(), source=str(self.encoder_file))

    def encoder_weights(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The trained encoder's weights and metadata."""
        from hirl.runs.encoder_file import load_encoder

        if not self.encoder_file.is_file():
            raise ValueError(f"{str(self.folder)!r} has no encoder yet: training writes it after its last epoch")
        return load_encoder(self.encoder_file)

    @property
    def tree(self) -> PrototypeTree:
        from hirl.hierarchy.tree import PrototypeTree

        if not self.tree_file.is_file():
            raise ValueError(f"{str(self.folder)!r} has no tree: it is a baseline, or has not reached its first one")
        return PrototypeTree.load(self.tree_file)

    def evaluate(self, *tasks: str | Evaluation, **options: Any) -> dict[str, Result]:
        """The encoder's figures by task; the options are those of `hirl.evaluate`."""
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


def versions(*more: str) -> dict[str, str]:
    """The installed versions of hirl and the libraries that its output depends on."""
    return {name: version(name) for name in (*LIBRARIES, *more)}


def folder_name(name: str) -> str:
    """The last part of an image set's path or name, with only characters that are safe in a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name).strip("-.") or "images"
