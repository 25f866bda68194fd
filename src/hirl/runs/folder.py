"""A run folder: a run's configuration, progress and output. Nothing else is passed between commands."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import yaml

from hirl.config import FORMAT_KEY
from hirl.data.own_folders import ABOUT, CONFIG
from hirl.encoders.weights_source import Provenance
from hirl.files import CHECKSUM, Damaged, atomic_write, full_disk_named, read_json, verify
from hirl.runs.about import About
from hirl.runs.metrics import SECONDS_KMEANS, read_reports, report_line

FORMAT = "hirl run 2"
OPTIONS = (
    "data", "method", "hierarchy", "epochs", "batch_size", "image_size", "seed", "split", "channels", "mean", "std",
    "precision", "accumulate", "encoder", "cached_views", "neighbours",
)  # fmt: skip
OLD_RUN_DEFAULTS: dict[str, Any] = {"unfreeze": 0}  # of options that runs of earlier versions lack
LOCK = ".lock"
FAILURE = "the loss is "  # how the message begins that a loss which is not finite ends training with
_locks: set[IO[str]] = set()  # held by this process
# A worker that outlives this process must not hold the folder any longer: the same command continues at once.
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _locks])


class RunFolder:
    """One run's folder: its files, and what can be read from them without its networks.

    config.yaml        the resolved configuration; `hirl pretrain --config` takes it
    about.json         command line, versions, machine and derived settings, one entry per start
    metrics.jsonl      one line per report
    images.tsv         where the images are, and a line per image
    last.ckpt          the state after the last step that was saved
    checkpoints/       states that are kept (keep_every)
    log.txt            the run's messages, with the time
    encoder.safetensors, tree.safetensors, skipped.txt, wandb_id.txt
    start.safetensors  the frozen encoder that was adapted; adaptation.json compares the two
    results/           one file per task and protocol: figures with their protocol
    features/          cached features of evaluated images; may be deleted at any time
    """

    def __init__(self, folder: str | os.PathLike[str], *, checkpoint: str | os.PathLike[str] | None = None) -> None:
        """Open a folder. With a `checkpoint`, the encoder, heads and tree are taken from that file."""
        self.folder = Path(folder)
        self.has_own_checkpoint = checkpoint is not None
        self.checkpoint_file = self.folder / "last.ckpt" if checkpoint is None else Path(checkpoint)

    config_file = property(lambda self: self.folder / CONFIG)
    about_file = property(lambda self: self.folder / ABOUT)
    metrics_file = property(lambda self: self.folder / "metrics.jsonl")
    images_file = property(lambda self: self.folder / "images.tsv")
    checkpoints_folder = property(lambda self: self.folder / "checkpoints")
    encoder_file = property(lambda self: self.folder / "encoder.safetensors")
    tree_file = property(lambda self: self.folder / "tree.safetensors")
    start_file = property(lambda self: self.folder / "start.safetensors")
    adaptation_file = property(lambda self: self.folder / "adaptation.json")
    log_file = property(lambda self: self.folder / "log.txt")
    skipped_file = property(lambda self: self.folder / "skipped.txt")
    results_folder = property(lambda self: self.folder / "results")
    features_folder = property(lambda self: self.folder / "features")

    @property
    def exists(self) -> bool:
        return self.config_file.is_file()

    def check_exists(self) -> None:
        """Raise a ValueError if there is no run."""
        if not self.folder.exists():
            raise ValueError(f"there is no run folder {str(self.folder)!r}")
        if not self.exists:
            raise ValueError(f"{str(self.folder)!r} is not a run folder: it has no config.yaml")

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        self.check_exists()
        damaged = f"{str(self.config_file)!r} is damaged"
        remedy = "restore the file, or delete the run's folder to train it again"
        try:
            verify(self.config_file)
            options = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        except Damaged as error:
            raise ValueError(f"{error}; {remedy}; if you have edited it, delete its first line") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(f"{damaged}: it is not a YAML file ({' '.join(str(error).split())}); {remedy}") from error
        if not isinstance(options, dict):
            raise ValueError(f"{damaged}: it does not hold the options of a run; {remedy}")
        written = options.get(FORMAT_KEY, FORMAT)
        if written != FORMAT:
            raise ValueError(
                f"{str(self.folder)!r} has the format {written!r}, but this version of hirl reads {FORMAT!r} only: "
                "open it with the version that wrote it (about.json names it), or train it again in another folder"
            )
        options = OLD_RUN_DEFAULTS | options
        missing = [name for name in (FORMAT_KEY, *OPTIONS) if name not in options]
        if missing:
            raise ValueError(f"{damaged}: it lacks {', '.join(missing)}; {remedy}")
        method = options["method"]
        if not (isinstance(method, dict) and isinstance(method.get("class_path"), str) and "init_args" in method):
            raise ValueError(f"{damaged}: its method is not a class with arguments; {remedy}")
        if not isinstance(options["hierarchy"], dict | None) or not isinstance(options["epochs"], int):
            raise ValueError(f"{damaged}: its hierarchy or its epochs are not those of a run; {remedy}")
        return {name: options[name] for name in options if name != FORMAT_KEY}

    @property
    def finished(self) -> bool:
        """Whether the last step was done and reported."""
        return any(line.get("finished") for line in self.metrics())

    @property
    def saved(self) -> bool:
        """Whether the run has had a checkpoint, even if it has gone."""
        lines = list(self.metrics())
        return self.encoder_file.is_file() or any(
            line.get("saved") or line.get("finished") or line["epoch"] > 1 for line in lines
        )

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The reports, oldest first, without lines that are damaged, such as one that was cut off by a kill."""
        yield from read_reports(self.metrics_file)[0]

    @property
    def is_adapted(self) -> bool:
        """Whether the run trains an adapter on an encoder that stays frozen."""
        return "adapter" in (self.config["method"]["init_args"].get("backbone_args") or {})

    @property
    def adaptation(self) -> dict[str, Any] | None:
        """By name of a figure, (start, adapted, least difference that counts).

        None if no encoder was adapted, the run is not finished, or the file is damaged.
        """
        try:
            found = read_json(self.adaptation_file)
            return {
                str(name): (float(start), float(adapted), float(least))
                for name, (start, adapted, least) in found.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    @property
    def failure(self) -> str | None:
        """Why the last start ended, if a loss was not finite: `the loss is nan at step 8 (epoch 2)`."""
        try:
            lines = self.log_file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return None
        for line in lines[-2:]:  # a warning of unreadable images may follow
            message = line.partition("  ")[2]
            if message.startswith(FAILURE):
                return message.partition(":")[0]
        return None

    @property
    def state(self) -> str:
        """Method, arm, state and epoch, in one line."""
        config = self.config
        arm = "baseline" if config.get("hierarchy") is None else "HIRL"
        epoch = max((line["epoch"] for line in self.metrics()), default=0)
        state = "finished" if self.finished else "unfinished"
        why = "" if self.finished or self.failure is None else f"; it stopped since {self.failure}"
        return f"{self.method_name}, {arm}, {state}, epoch {epoch:.4g} of {config['epochs']}{why}"

    @property
    def method_name(self) -> str:
        return str(self.config["method"]["class_path"]).rpartition(".")[2]

    def launches(self) -> list[dict[str, Any]]:
        """The entries of about.json: command, versions, machine and so on per start. A damaged file has none."""
        return About(self.about_file).entries()

    def begin(self, config: dict[str, Any]) -> None:
        """Write the configuration of a new run, and a line about this start. The folder must be locked."""
        if not (self.checkpoint_file.is_file() or self.saved):
            with atomic_write(self.config_file, checksum=True) as aside:
                written = yaml.safe_dump({FORMAT_KEY: FORMAT} | config, sort_keys=False, allow_unicode=True)
                aside.write_text(f"# {CHECKSUM}\n{written}", encoding="utf-8")
        for left_over in self.folder.glob(".*.part"):  # of a process that was killed while it wrote
            left_over.unlink()
        About(self.about_file).add_start()

    def record_resolved(self, resolved: dict[str, Any]) -> None:
        """Add to the entry of this start the derived settings, such as the learning rate for the batch size.

        It is not part of config.yaml, which is the input of the run: read as a recipe again, a learning rate that has
        been scaled to the batch size would be scaled twice.
        """
        About(self.about_file).extend_start({"resolved": resolved})

    def record_origin(self, provenance: Provenance) -> None:
        """Add to the entry of this start where the weights come from that the run starts with."""
        About(self.about_file).extend_start({"started_from": asdict(provenance)})

    @property
    def origin(self) -> Provenance | None:
        """Provenance of the initial weights; None if random."""
        named = self.config["encoder"]
        lost = None if named is None else Provenance(str(named))  # if about.json is missing or damaged
        return About(self.about_file).origin or lost

    @property
    def provenance(self) -> Provenance | None:
        """Provenance of the run's own weights; None if it started from random ones."""
        origin = self.origin
        if origin is None:
            return None
        config = self.config
        arm = "" if config["hierarchy"] is None else " and HIRL"
        return origin.trained_on(f"trained on {Path(config['data']).name} by {self.method_name}{arm}, without labels")

    @property
    def resolved(self) -> dict[str, Any]:
        return About(self.about_file).resolved

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; a second process gets a ValueError."""
        if self.folder.is_file():
            raise ValueError(f"{str(self.folder)!r} is a file, not a run folder: name another one")
        if not self.exists and self.folder.is_dir() and any(entry.name != LOCK for entry in self.folder.iterdir()):
            raise ValueError(
                f"the folder {str(self.folder)!r} is not empty and not a run folder, as it has no config.yaml: "
                "name another one"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"another process is training in {str(self.folder)!r}: wait for it or stop it"
                ) from error
            _locks.add(lock)
            try:
                yield
            finally:
                _locks.discard(lock)

    def drop_reports_after(self, step: int, *, final_tree: bool = False) -> None:
        """Drop the reports that a run continued from its checkpoint of that step will repeat.

        They are those of later steps, that of the tree that is built before the next step, and that of the end.
        `final_tree`: the checkpoint holds the final tree, which is not built again.
        """

        def is_kept(line: dict[str, Any]) -> bool:
            tree, end = SECONDS_KMEANS.name in line, line.get("finished")
            again = (tree and not final_tree) or end
            return bool(line["step"] < step or (line["step"] == step and not again))

        kept = [line for line in self.metrics() if is_kept(line)]
        with atomic_write(self.metrics_file) as aside:
            aside.write_text("".join(map(report_line, kept)), encoding="utf-8")

    def report(self, line: dict[str, Any]) -> None:
        with full_disk_named(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(report_line(line))

    def log(self, message: str) -> None:
        """Append a message to log.txt, each line with the time."""
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        with full_disk_named(self.log_file), self.log_file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{now}  {line}\n" for line in message.splitlines()))


def folder_name(name: str) -> str:
    """The last part of an image set's path or name, with only characters that are safe in a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name).strip("-.") or "images"
