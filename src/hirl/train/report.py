"""Reports how a run goes: a progress bar or lines on the terminal, metrics.jsonl, TensorBoard, and optionally W&B."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import Tensor

from hirl.files import atomic_write
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method, Plan
from hirl.runs.folder import Run
from hirl.train.health import Health, check_loss, check_representations, check_tree
from hirl.train.joint import Losses
from hirl.train.machine import size_text, used_memory
from hirl.train.observer import Rates
from hirl.train.online_knn import KnnAccuracy
from hirl.train.tree_figures import TreeFigures

EVERY_SECONDS = 2.0  # between lines of metrics.jsonl; the bar moves with every line
MEASURED_SECONDS = 10.0  # of the first steps, after which a run says how long it will take


class _Remaining(ProgressColumn):
    """The time left at the rate of this process's own steps: a continued run does not count earlier ones."""

    def render(self, task: Task) -> Text:
        seconds = task.fields.get("remaining")
        if seconds is None:
            return Text("–:––")
        return Text(f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d} left")


class Reporter:
    """The observer of the first process."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        *,
        method: Method,
        start: int,
        wandb: str | None = None,
        evaluate: Callable[[int], KnnAccuracy | None] | None = None,
        labels: Tensor | None = None,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.plan, self.method, self.evaluate = run, plan, method, evaluate
        self.tree_figures = TreeFigures(labels)
        self.console = Console(stderr=True)
        self.board = SummaryWriter(str(run.folder / "tensorboard"), purge_step=start)
        self.wandb = start_wandb(wandb, run) if wandb else None
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            _Remaining(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        epoch = start // plan.steps_per_epoch + 1
        self.task = self.bar.add_task("", total=plan.steps, completed=start, epoch=epoch, epochs=plan.epochs, status="")
        self._start_step, self._start_time = start, time.monotonic()
        self._warm = self._announced = False
        # None if an earlier process began the epoch: the time taken here would be that of a part of it.
        self._epoch_start = None if start % plan.steps_per_epoch else time.monotonic()
        self._clear_sums()
        self._last_figures: dict[str, float] = {}
        self._diagnostics: list[dict[str, Tensor]] = []  # of the steps of this epoch that have them

    def continue_from(self, tree: PrototypeTree) -> None:
        """Take the tree of the last checkpoint, which has been reported, as the one before the next."""
        self.tree_figures.measure(tree)

    def _clear_sums(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps, self._images, self._data_seconds, self._since = 0, 0, 0.0, time.monotonic()

    def on_step(self, step: int, losses: Losses, rates: Rates, images: int, data_seconds: float) -> None:
        named = {"loss_image": losses.image, "loss_spd": losses.spd, **losses.logs}
        for name, value in named.items():
            # Summed on the device: reading a value would make every step wait for it.
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        if losses.diagnostics:
            self._diagnostics.append(losses.diagnostics)
        if not self._warm:  # the first step waits for the first images and warms everything up
            self._warm, self._start_step, self._start_time = True, step, time.monotonic()
        self._steps += 1
        self._images += images
        self._data_seconds += data_seconds
        last_of_epoch = step % self.plan.steps_per_epoch == 0
        if time.monotonic() - self._since >= EVERY_SECONDS or last_of_epoch:
            self._report_steps(step, rates)

    def _report_steps(self, step: int, rates: Rates) -> None:
        """Report the means over the steps since the last report."""
        taken = time.monotonic() - self._since
        figures = {name: float(value) / self._steps for name, value in self._sums.items()}
        figures |= {name: float(value) for name, value in rates.items()}
        figures |= {"images_per_second": self._images / taken, "waiting_for_data": self._data_seconds / taken}
        self._log(step, figures)
        left = (time.monotonic() - self._start_time) / max(1, step - self._start_step) * (self.plan.steps - step)
        spd = f"loss_spd {figures['loss_spd']:.4f}, " if figures["loss_spd"] else ""  # 0: there is no tree
        status = (
            f"loss_image {figures['loss_image']:.4f}, {spd}"
            f"{figures['images_per_second']:,.0f} images/s, {figures['waiting_for_data']:.0%} waiting for data"
        )
        self._announce_duration(step, left)
        epoch = (step - 1) // self.plan.steps_per_epoch + 1
        self.bar.update(self.task, completed=step, epoch=epoch, status=status, remaining=left)
        self._last_figures = figures
        if step % self.plan.steps_per_epoch == 0:
            line = f"epoch {epoch}/{self.plan.epochs}: {status}, {left / 60:.1f} min left"
            self.run.log(line)
            if not self.console.is_terminal:  # there is no bar that shows it
                self.console.print(line, highlight=False, soft_wrap=True)
        self._clear_sums()

    def _announce_duration(self, step: int, left: float) -> None:
        """Once the first steps have been measured, say how long the run will take and what memory it uses."""
        count, taken = step - self._start_step, time.monotonic() - self._start_time
        early = taken < MEASURED_SECONDS and step % self.plan.steps_per_epoch
        if self._announced or count == 0 or early or step == self.plan.steps:
            return
        self._announced = True
        self._show(
            f"{duration_text(left)} left, measured over {count} step{'s' if count > 1 else ''}; "
            f"memory in use {size_text(used_memory(next(self.method.parameters()).device.type))}"
        )

    def _log(self, step: int, figures: dict[str, Any]) -> None:
        epoch = step / self.plan.steps_per_epoch
        self.run.report({"step": step, "epoch": round(epoch, 4)} | figures)
        for name, value in figures.items():
            if isinstance(value, float):
                self.board.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(figures, step=step)

    def on_tree_start(self, epoch: int) -> TreeProgress | None:
        def progress(level: int, step: int, _done: int) -> None:
            purpose = f"epoch {epoch + 1}" if epoch < self.plan.epochs else "the finished run"
            self.bar.update(self.task, status=f"clustering for {purpose}: level {level}, step {step}")

        return progress

    def on_tree_built(
        self, epoch: int, seconds: dict[str, float], tree: PrototypeTree, agreement: dict[str, float]
    ) -> None:
        health = check_tree(tree)
        figures = {f"seconds_{name}": value for name, value in seconds.items()} | health.figures | agreement
        figures |= self.tree_figures.measure(tree, anew=epoch == self.plan.epochs)
        self._log(epoch * self.plan.steps_per_epoch, figures)
        self._warn(health.warnings)
        self._since = time.monotonic()  # the time of the steps does not include that of the tree

    def on_epoch_end(self, epoch: int, step: int, sample: list[Tensor]) -> None:
        health = check_representations(sample) if sample else Health({}, [])  # in 16-mixed all steps may be skipped
        figures = dict(health.figures) | _means(self._diagnostics)
        self._diagnostics = []
        if self._epoch_start is not None:
            figures["seconds_epoch"] = time.monotonic() - self._epoch_start
        knn = None if self.evaluate is None else self.evaluate(epoch)
        self._log(step, figures | ({} if knn is None else knn.figures()))
        self._warn(health.warnings)
        if epoch >= max(2, self.plan.epochs // 5):  # every run begins near ln K
            loss = self._last_figures.get(self.method.even_loss)
            self._warn(check_loss(loss, self.method.outputs, self.method.remedy).warnings)
        if knn is not None:
            self._show(f"epoch {epoch + 1}: {knn}")
        self._since = self._epoch_start = time.monotonic()

    def _warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            self._show(f"warning: {warning}", style="yellow")

    def _show(self, message: str, style: str | None = None) -> None:
        self.run.log(message)
        self.console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Reporter:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()
        self.board.close()
        if self.wandb is not None:
            self.wandb.finish(exit_code=int(kind is not None))


def _means(measured: list[dict[str, Tensor]]) -> dict[str, float]:
    return {name: float(torch.stack([one[name] for one in measured]).mean()) for name in (measured or [{}])[0]}


def duration_text(seconds: float) -> str:
    """A time as people say it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def start_wandb(project: str, run: Run) -> Any:
    """Begin to report to a project of Weights & Biases, or go on where this run folder did."""
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            "the option wandb needs the library wandb, which is not installed: pip install wandb"
        ) from error
    # Not the folder's name, which runs of several studies may share, nor its path, at which a new run may begin.
    stored = run.folder / "wandb_id.txt"
    if not stored.is_file():
        with atomic_write(stored) as aside:
            aside.write_text(uuid.uuid4().hex, encoding="utf-8")
    named = {"id": stored.read_text(encoding="utf-8"), "name": run.folder.name}
    return wandb.init(project=project, dir=str(run.folder), config=run.config, resume="allow", **named)
