"""The tree as a scikit-learn estimator: hierarchical K-means of features, by direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.levels import check_levels, levels_by_number
from hirl.hierarchy.tree import PrototypeTree


class HierarchicalClustering(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Clusters rows of features (N, D) into a tree of prototypes.

    Only the direction of a row counts, as for the features of image encoders. A row of zeros, which has none, counts as
    a row of ones.

    Args:
        levels: Nodes per level, fine to coarse; by default they suit the number of rows.
        level: The level that `labels_`, `predict` and `transform` speak of: 0 is the finest, −1 the coarsest.
        order: "top-down", or "bottom-up" as in Alg. 1.
        centre: Cluster the rows less their mean.
        components: Cluster this many principal components; None for all.
        whiten: Divide each component by its standard deviation to this power, from 0 to 1.
        iterations: Maximum number of Lloyd steps per level.
        restarts: Number of starts per level; the best is kept.
        random_state: Seed of the starting rows, or a generator of numpy.

    After `fit`: `tree_`, the `hirl.PrototypeTree`; `paths_` (N, L), the node of each row at each level; `labels_` (N,).
    """

    def __init__(
        self,
        levels: Sequence[int] | None = None,
        *,
        level: int = -1,
        order: Literal["top-down", "bottom-up"] = "top-down",
        centre: bool = True,
        components: int | None = None,
        whiten: float = 0.0,
        iterations: int = 20,
        restarts: int = 1,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.levels = levels
        self.level = level
        self.order = order
        self.centre = centre
        self.components = components
        self.whiten = whiten
        self.iterations = iterations
        self.restarts = restarts
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> HierarchicalClustering:  # noqa: ARG002
        """Build the tree over the rows of X (N, D)."""
        rows = self._rows(X, reset=True)
        levels = levels_by_number(len(rows)) if self.levels is None else check_levels(self.levels)
        if not -len(levels) <= self.level < len(levels):
            raise ValueError(f"level is {self.level}, but there are {len(levels)} levels, counted from 0")
        passed_on = ("order", "centre", "components", "whiten", "iterations", "restarts")
        build = HierarchicalKMeans(**{name: getattr(self, name) for name in passed_on})
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.tree_: PrototypeTree = build(rows, tuple(levels), seed=seed)
        self.paths_: npt.NDArray[np.int64] = self.tree_.image_paths.numpy()
        self.labels_: npt.NDArray[np.int64] = self.paths_[:, self.level]
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """(n,): the node of each row at `level`."""
        nodes: npt.NDArray[np.int64] = self.predict_paths(X)[:, self.level]
        return nodes

    def predict_paths(self, X: Any) -> npt.NDArray[np.int64]:
        """(n, L): the node of each row at each level, fine → coarse."""
        check_is_fitted(self)
        paths: npt.NDArray[np.int64] = self.tree_.path(self.tree_.assign(self._rows(X))).numpy()
        return paths

    def transform(self, X: Any) -> npt.NDArray[np.floating]:
        """(n, M): the cosine of each row with each prototype of `level`."""
        check_is_fitted(self)
        rows = self._rows(X)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines: npt.NDArray[np.floating] = unit @ self.tree_.prototypes[self.level].numpy().T.astype(rows.dtype)
        return cosines

    @property
    def _n_features_out(self) -> int:
        return self.tree_.levels[self.level]

    def _rows(self, X: Any, *, reset: bool = False) -> npt.NDArray[np.floating]:
        rows: npt.NDArray[np.floating] = validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            copy=True,
            ensure_min_samples=4 if reset and self.levels is None else 1,
            ensure_min_features=2 if reset else 1,
        )
        rows[~rows.any(axis=1)] = 1
        return rows
