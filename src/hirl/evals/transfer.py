"""Transfer: fine-tuning on labelled images other than those the encoder was trained on (Places205 in the paper)."""

from __future__ import annotations

from typing import ClassVar

from hirl.evals.finetune import FineTune


class Transfer(FineTune):
    """`FineTune` on images other than the run's, under a name of its own in the results."""

    name: ClassVar[str] = "transfer"
