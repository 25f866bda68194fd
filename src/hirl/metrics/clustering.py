"""How well clusters match classes: accuracy of the best matching, and mutual information."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.metrics.agreement import cells


def clustering_accuracy(clusters: Tensor, labels: Tensor) -> float:
    """The share of images (N,) told right when each cluster stands for one class, by the best such matching."""
    from scipy.optimize import linear_sum_assignment

    found = cells(clusters, labels)
    table = torch.zeros(int(clusters.max()) + 1, int(labels.max()) + 1, dtype=torch.int64)
    table[found.node, found.label] = found.images
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return int(table[rows, columns].sum()) / len(labels)


def mutual_information(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """NMI, and AMI, which is 0 by chance however many clusters there are; both 1 where they tell the same."""
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    if len(cells(clusters, labels).images) == len(clusters.unique()) == len(labels.unique()):
        return {"NMI": 1.0, "AMI": 1.0}  # the same but for their names; logarithms would miss 1 by their last digit
    two = labels.cpu().numpy(), clusters.cpu().numpy()
    return {"NMI": float(normalized_mutual_info_score(*two)), "AMI": float(adjusted_mutual_info_score(*two))}
