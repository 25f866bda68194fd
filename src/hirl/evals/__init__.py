"""Evaluations, one file per task. To add one: a file, and its class here."""

from hirl.config import import_class
from hirl.evals.base import Evaluation, Needs, Result, Subject
from hirl.evals.clustering import Clustering
from hirl.evals.detection.evaluation import Detection
from hirl.evals.finetune import FineTune, Transfer
from hirl.evals.knn import KNN
from hirl.evals.linear import Linear
from hirl.evals.semisup import SemiSupervised
from hirl.evals.tree import TreeAgreement
from hirl.terminal.figures import Figure, Kind

EVALUATIONS: dict[str, type[Evaluation]] = {
    kind.name: kind for kind in (KNN, Linear, Clustering, TreeAgreement, SemiSupervised, FineTune, Transfer, Detection)
}
"""By their names on the command line."""


def find_evaluation(name: str) -> type[Evaluation]:
    """The evaluation of this name or, with dots, the class at this path; a ValueError with the choices."""
    if name in EVALUATIONS:
        return EVALUATIONS[name]
    choices = f"choose from {', '.join(EVALUATIONS)}, or package.module.Class for your own"
    if "." not in name:
        raise ValueError(f"there is no evaluation {name!r}: {choices}")
    kind = import_class(name, "evaluation")
    if not issubclass(kind, Evaluation) or not isinstance(getattr(kind, "name", None), str):
        raise ValueError(f"{name!r} is not an evaluation, a subclass of hirl.evals.Evaluation with a name: {choices}")
    return kind


__all__ = [
    "EVALUATIONS",
    "KNN",
    "Clustering",
    "Detection",
    "Evaluation",
    "Figure",
    "FineTune",
    "Kind",
    "Linear",
    "Needs",
    "Result",
    "SemiSupervised",
    "Subject",
    "Transfer",
    "TreeAgreement",
    "find_evaluation",
]
