"""Start training from given weights: those of another run's encoder, or of an encoder file."""

from __future__ import annotations

from hirl.methods.base import Method
from hirl.runs.encoder_file import fit_weights
from hirl.runs.open_encoder import encoder_weights


def start_from(method: Method, source: str) -> None:
    """Load the weights at `source`, a run folder or an encoder file, into every copy of the method's encoder."""
    weights = encoder_weights(source)
    for encoder in method.encoder_copies:
        fit_weights(encoder, weights, source=source, name=method.backbone)
