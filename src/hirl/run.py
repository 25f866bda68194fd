"""`hirl.Run`: a run folder with what was trained in it, its encoder and its tree, and their evaluation."""

from __future__ import annotations

from html import escape
from typing import Any

from torch import Tensor, nn

from hirl.encoders.encoder_file import EncoderMetadata, make_encoder
from hirl.evals.base import Evaluation, Result
from hirl.evals.evaluate import evaluate
from hirl.hierarchy.tree import PrototypeTree
from hirl.runs.folder import RunFolder
from hirl.runs.metrics import last_figures
from hirl.runs.stored import find_encoder, find_tree
from hirl.terminal.figures import format_figure


class Run(RunFolder):
    """A run, as `hirl.pretrain` returns it and `hirl.Run("runs/x")` opens it. `RunFolder` lists its files."""

    @property
    def encoder(self) -> nn.Module:
        """The trained encoder in eval mode: images (B, C, H, W), normalised as in training → features (B, width)."""
        return make_encoder(*self.encoder_weights(), source=str(self.encoder_file))

    def encoder_weights(self) -> tuple[dict[str, Tensor], EncoderMetadata]:
        """The encoder's weights and metadata; of the last checkpoint, with a warning, if the run is unfinished."""
        found = find_encoder(self)
        return found.weights, found.metadata

    @property
    def tree(self) -> PrototypeTree:
        """The tree; a ValueError if there is none."""
        found = find_tree(self)
        if found is None:
            self.check_exists()
            raise ValueError(f"{str(self.folder)!r} has no tree: it is a baseline, or has not reached its first one")
        return found

    def evaluate(self, *tasks: str | Evaluation, **options: Any) -> dict[str, Result]:
        """The encoder's figures by task; the options are those of `hirl.evaluate`."""
        return evaluate(self, *tasks, **options)

    def __repr__(self) -> str:
        """One line: the folder, the method, the arm and how far it is; also of a folder that is not a run."""
        try:
            return f"Run({str(self.folder)!r}: {self.state})"
        except ValueError as error:
            return f"Run({str(self.folder)!r}: {error})"

    def _repr_html_(self) -> str:
        """The same line, and a table of the last value of every figure, for notebooks."""
        rows = [
            f"<tr><td>{escape(name)}</td><td>{escape(format_figure(value))}</td></tr>"
            for name, value in last_figures(self.metrics()).items()
        ]
        return f"<p><b>{escape(repr(self))}</b></p><table>{''.join(rows)}</table>"
