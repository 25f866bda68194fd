"""Random streams of a run. Each number is mixed into the run's seed, so that no two streams draw the same numbers."""

from __future__ import annotations

NETWORKS, HEADS, FORWARD, NEGATIVES, KMEANS = range(5)
