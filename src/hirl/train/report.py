"""Reports the progress of a run: a bar or lines on the terminal, metrics.jsonl, TensorBoard, and optionally W&B."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from hirl.files import atomic_write
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method, Plan
from hirl.run import Run
from hirl.runs.metrics import IMAGES_PER_SECOND, LOSS_IMAGE, LOSS_SPD, RECENT, SECONDS_EPOCH, WAITING_FOR_DATA
from hirl.terminal.progress import duration_text
from hirl.train.health import Health, TreeFigures, check_loss, check_representations, check_tree
from hirl.train.job import Job
from hirl.train.machine import size_text, used_memory
from hirl.train.means import Means
from hirl.train.observer import Observer, Rates
from hirl.train.online_knn import KnnAccuracy, open_online_knn
from hirl.train.setup import Components

EVERY_SECONDS = 2.0  # between lines of metrics.jsonl; the bar moves with every line
MEASURED_SECONDS = 10.0  # of steps, after which a run announces how long it will take


class Reporter(Observer):
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
            TextColumn("{task.fields[left]}"),  # rich would count steps that an earlier process took
            console=self.console,
            disable=not self.console.is_terminal,
        )
        epoch = start // plan.steps_per_epoch + 1
        fields: dict[str, Any] = {"epoch": epoch, "epochs": plan.epochs, "status": "", "left": "–:––"}
        self.task = self.bar.add_task("", total=plan.steps, completed=start, **fields)
        self._start_step, self._start_time = start, time.monotonic()
        self._warm = self._announced = False
        # None if an earlier process began the epoch: this process could time only a part of it.
        self._epoch_start = None if start % plan.steps_per_epoch else time.monotonic()
        self._means = Means()
        self._recent, self._epoch = _Throughput(), _Throughput()

    def on_step(self, step: int, figures: Mapping[str, Tensor], rates: Rates, images: int, data_seconds: float) -> None:
        self._means.add(figures)
        if not self._warm:  # the first step is not typical: it waits for the first images and allocates memory
            self._warm, self._start_step, self._start_time = True, step, time.monotonic()
        for throughput in (self._recent, self._epoch):
            throughput.add(images, data_seconds)
        if self._recent.seconds >= EVERY_SECONDS or step % self.plan.steps_per_epoch == 0:
            self._report_steps(step, rates)

    def _report_steps(self, step: int, rates: Rates) -> None:
        """Report the means over the steps since the last report."""
        means, throughput = self._means.take(), self._recent
        figures = {RECENT + name: mean for name, mean in means.items()}
        figures |= {name: float(value) for name, value in rates.items()} | throughput.figures()
        self._log(step, figures)
        left = self._seconds_left(step)
        self._announce_duration(step, left)
        epoch = (step - 1) // self.plan.steps_per_epoch + 1
        shown = "–:––"
        if left is not None:
            minutes, seconds = divmod(int(left), 60)
            shown = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
        self.bar.update(self.task, completed=step, epoch=epoch, status=_status(means, throughput), left=shown)
        self._recent = _Throughput()

    def _seconds_left(self, step: int) -> float | None:
        """None while no step has been measured."""
        if step == self._start_step < self.plan.steps:
            return None
        return (time.monotonic() - self._start_time) / max(1, step - self._start_step) * (self.plan.steps - step)

    def _announce_duration(self, step: int, left: float | None) -> None:
        """Once the first steps have been measured, announce the time left and the memory in use."""
        count, taken = step - self._start_step, time.monotonic() - self._start_time
        early = taken < MEASURED_SECONDS and step % self.plan.steps_per_epoch
        if self._announced or left is None or early or step == self.plan.steps:
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
        figures = seconds | health.figures | agreement
        figures |= self.tree_figures.measure(tree, anew=epoch == self.plan.epochs)
        self._log(epoch * self.plan.steps_per_epoch, figures)
        self._warn(health.warnings)
        self._recent, self._epoch = _Throughput(), _Throughput()  # steps are timed without the tree

    def on_tree_restored(self, tree: PrototypeTree) -> None:
        self.tree_figures.measure(tree)  # the next tree is compared with it

    def on_epoch_end(self, epoch: int, step: int, means: dict[str, float], sample: list[Tensor]) -> None:
        line = f"epoch {epoch + 1}/{self.plan.epochs}: {_status(means, self._epoch)}"
        if (left := self._seconds_left(step)) is not None:
            line += f", {left / 60:.1f} min left"
        self.run.log(line)
        if not self.console.is_terminal:  # there is no bar
            self.console.print(line, highlight=False, soft_wrap=True)
        health = check_representations(sample) if sample else Health({}, [])  # in 16-mixed all steps may be skipped
        figures = means | health.figures
        if self._epoch_start is not None:
            figures[SECONDS_EPOCH.name] = time.monotonic() - self._epoch_start
        knn = None if self.evaluate is None else self.evaluate(epoch)
        self._log(step, figures | ({} if knn is None else knn.figures()))
        self._warn(health.warnings)
        if epoch >= max(2, self.plan.epochs // 5):  # every run begins near ln K
            loss = means.get(self.method.even_loss or LOSS_IMAGE.name)
            self._warn(check_loss(loss, self.method.outputs, self.method.remedy))
        if knn is not None:
            self._show(f"epoch {epoch + 1}: {knn}")
        self._epoch_start = time.monotonic()
        self._recent, self._epoch = _Throughput(), _Throughput()

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


class _Throughput:
    """How fast steps follow each other, from now on."""

    def __init__(self) -> None:
        self._images, self._waited, self._start = 0, 0.0, time.monotonic()

    def add(self, images: int, data_seconds: float) -> None:
        self._images += images
        self._waited += data_seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def figures(self) -> dict[str, float]:
        taken = self.seconds
        return {IMAGES_PER_SECOND.name: self._images / taken, WAITING_FOR_DATA.name: self._waited / taken}


def _status(means: Mapping[str, float], throughput: _Throughput) -> str:
    """Losses and throughput as text."""
    losses = "".join(f"{loss.name} {means[loss.name]:.4f}, " for loss in (LOSS_IMAGE, LOSS_SPD) if loss.name in means)
    speed = throughput.figures()
    return f"{losses}{speed[IMAGES_PER_SECOND.name]:,.0f} images/s, {speed[WAITING_FOR_DATA.name]:.0%} waiting for data"


def start_wandb(project: str, run: Run) -> Any:
    """Start reporting to a Weights & Biases project, or continue this run's earlier report there."""
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            "the option wandb needs the library wandb, which is not installed: pip install wandb"
        ) from error
    # The id is not the folder's name, which runs of several studies may share, nor its path, which a new run may reuse.
    stored = run.folder / "wandb_id.txt"
    if not stored.is_file():
        with atomic_write(stored) as aside:
            aside.write_text(uuid.uuid4().hex, encoding="utf-8")
    named = {"id": stored.read_text(encoding="utf-8"), "name": run.folder.name}
    return wandb.init(project=project, dir=str(run.folder), config=run.config, resume="allow", **named)


@contextmanager
def open_observer(
    job: Job, components: Components, start: int, *, knn_every: int, wandb: str | None
) -> Iterator[Observer]:
    """Report from step `start` on, on the first process; the others are silent."""
    if not job.is_first:
        yield Observer()
        return
    knn, known = open_online_knn(job, components, knn_every), job.data.images.labels
    labels = None if known is None else known[:, 0]
    with Reporter(
        job.run, components.plan, method=components.method, start=start, wandb=wandb, evaluate=knn, labels=labels
    ) as reporter:
        yield reporter
