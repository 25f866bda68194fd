"""Agreement of clusters with classes: accuracy of the best matching, and mutual information."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.metrics.agreement import cells


def clustering_accuracy(clusters: Tensor, labels: Tensor) -> float:
    """The share of images classified correctly if each cluster stands for one class, by the best matching.

    clusters and labels are (N,).
    """
    from scipy.optimize import linear_sum_assignment

    found = cells(clusters, labels)
    table = torch.zeros(int(clusters.max()) + 1, int(labels.max()) + 1, dtype=torch.int64)
    table[found.node, found.label] = found.images
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return int(table[rows, columns].sum()) / len(labels)


def mutual_information(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """NMI and AMI, both 1 for equal partitions. AMI is 0 by chance whatever the number of clusters."""
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    if len(cells(clusters, labels).images) == len(clusters.unique()) == len(labels.unique()):
        return {"NMI": 1.0, "AMI": 1.0}  # equal up to names; logarithms would miss 1 by the last digit
    both = labels.cpu().numpy(), clusters.cpu().numpy()
    return {"NMI": float(normalized_mutual_info_score(*both)), "AMI": float(adjusted_mutual_info_score(*both))}
