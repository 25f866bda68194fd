"""How a run is followed: a line on the terminal, metrics.jsonl and TensorBoard always, Weights & Biases when asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import Tensor

from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.paths import SemanticPaths
from hirl.methods.base import Method, Plan
from hirl.runs.folder import Run
from hirl.train import health as watch
from hirl.train.joint import Losses

EVERY_SECONDS = 2.0  # between reports to files; the bar moves with every step


class _Remaining(ProgressColumn):
    """The time left at the rate of this session's own steps: a continued run does not count what came before."""

    def render(self, task: Task) -> Text:
        seconds = task.fields.get("remaining")
        if seconds is None:
            return Text("–:––")
        return Text(f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d} left")


class Report:
    """The observer of the first process."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        *,
        method: Method,
        start: int,
        wandb: str | None = None,
        evaluate: Callable[[int], dict[str, float]] | None = None,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.plan, self.method, self.evaluate = run, plan, method, evaluate
        self.console = Console(stderr=True)
        self.board = SummaryWriter(str(run.folder / "tensorboard"), purge_step=start)
        self.wandb = _wandb(wandb, run) if wandb else None
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            _Remaining(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task(
            "", total=plan.steps, completed=start, epoch=start // plan.steps_per_epoch + 1, epochs=plan.epochs, words=""
        )
        self._start_step, self._began = start, time.monotonic()
        # None where the epoch was begun by an earlier process: its time would be that of a part.
        self._epoch_began = None if start % plan.steps_per_epoch else time.monotonic()
        self._clear_sums()
        self._epoch: dict[str, float] = {}

    def _clear_sums(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps, self._images, self._waited, self._since = 0, 0, 0.0, time.monotonic()

    def stepped(self, step: int, losses: Losses, rates: dict[str, float], images: int, waited: float) -> None:
        named = {"loss_image": losses.image, "loss_spd": losses.spd, **losses.logs}
        for name, value in named.items():
            # On the device: looking at a value would make every step wait for it.
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._steps += 1
        self._images += images
        self._waited += waited
        last_of_epoch = step % self.plan.steps_per_epoch == 0
        if time.monotonic() - self._since >= EVERY_SECONDS or last_of_epoch:
            self._write(step, rates)

    def _write(self, step: int, rates: dict[str, float]) -> None:
        taken = time.monotonic() - self._since
        line = {name: float(value) / self._steps for name, value in self._sums.items()}
        line |= rates | {"images_per_second": self._images / taken, "waiting_for_data": self._waited / taken}
        self._log(step, line)
        made = step - self._start_step
        left = (time.monotonic() - self._began) / made * (self.plan.steps - step)
        spd = f"loss_spd {line['loss_spd']:.4f}, " if line["loss_spd"] else ""  # 0 is that there is no tree
        words = (
            f"loss_image {line['loss_image']:.4f}, {spd}"
            f"{line['images_per_second']:,.0f} images/s, {line['waiting_for_data']:.0%} waiting for data"
        )
        epoch = (step - 1) // self.plan.steps_per_epoch + 1
        self.bar.update(self.task, completed=step, epoch=epoch, words=words, remaining=left)
        self._epoch = line
        if step % self.plan.steps_per_epoch == 0:
            done = f"epoch {epoch}/{self.plan.epochs}: {words}, {left / 60:.1f} min left"
            self.run.log(done)
            if not self.console.is_terminal:  # where there is no bar that says so
                self.console.print(done, highlight=False, soft_wrap=True)
        self._clear_sums()

    def _log(self, step: int, figures: dict[str, Any]) -> None:
        epoch = step / self.plan.steps_per_epoch
        self.run.report({"step": step, "epoch": round(epoch, 4)} | figures)
        for name, value in figures.items():
            if isinstance(value, float):
                self.board.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(figures, step=step)

    def refreshing(self, epoch: int) -> TreeProgress | None:
        def told(level: int, step: int, _done: int) -> None:
            self.bar.update(self.task, words=f"clustering for epoch {epoch + 1}: level {level}, step {step}")

        return told

    def refreshed(self, epoch: int, seconds: dict[str, float], paths: SemanticPaths) -> None:
        assert paths.tree is not None
        paths.tree.save(self.run.tree_file)
        health = watch.tree_shape(paths.tree)
        figures = {f"seconds_{name}": value for name, value in seconds.items()} | health.figures
        self._log(epoch * self.plan.steps_per_epoch, figures)
        self.warn(health.warnings)
        self._since = time.monotonic()  # the refresh has its own figures

    def epoch_ended(self, epoch: int, step: int, sample: list[Tensor]) -> None:
        health = watch.representations(sample)
        figures = dict(health.figures)
        if self._epoch_began is not None:
            figures["seconds_epoch"] = time.monotonic() - self._epoch_began
        if self.evaluate is not None:
            figures |= self.evaluate(epoch)
        self._log(step, figures)
        self.warn(health.warnings)
        if epoch >= max(2, self.plan.epochs // 5):  # every run begins near there
            loss = self._epoch.get(self.method.even_loss)
            self.warn(watch.stuck_at(loss, self.method.outputs, self.method.remedy).warnings)
        knn = {name: value for name, value in figures.items() if name.startswith("knn")}
        if knn:
            shown = ", ".join(f"{name} {value:.1%}" for name, value in knn.items())
            self._say(f"epoch {epoch + 1}: {shown}")
        self._since = self._epoch_began = time.monotonic()

    def warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            self._say(f"warning: {warning}", style="yellow")

    def _say(self, words: str, style: str | None = None) -> None:
        self.run.log(words)
        self.console.print(words, style=style, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Report:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        self.board.close()


class Silent:
    """The observer of every other process."""

    def stepped(self, *_: object) -> None: ...
    def refreshing(self, _: int) -> None: ...
    def refreshed(self, *_: object) -> None: ...
    def epoch_ended(self, *_: object) -> None: ...


def _wandb(project: str, run: Run) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ValueError("wandb asks for the library wandb, which is not installed: pip install wandb") from error
    return wandb.init(project=project, dir=str(run.folder), config=run.config, resume="allow", id=run.folder.name)
