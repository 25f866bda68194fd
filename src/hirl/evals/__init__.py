"""One file an evaluation; a new one is a file and a line here."""

from hirl.evals.base import Evaluation, Result, Subject
from hirl.evals.clustering import Clustering
from hirl.evals.finetune import FineTune
from hirl.evals.hierarchy import HierarchyAgreement
from hirl.evals.knn import KNN
from hirl.evals.linear import Linear
from hirl.evals.semisup import SemiSupervised
from hirl.evals.transfer import Transfer

EVALUATIONS: dict[str, type[Evaluation]] = {
    kind.name: kind for kind in (KNN, Linear, Clustering, HierarchyAgreement, SemiSupervised, FineTune, Transfer)
}
"""By the names of the command line."""

__all__ = [
    "EVALUATIONS",
    "KNN",
    "Clustering",
    "Evaluation",
    "FineTune",
    "HierarchyAgreement",
    "Linear",
    "Result",
    "SemiSupervised",
    "Subject",
    "Transfer",
]
