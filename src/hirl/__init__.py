"""hirl learns hierarchical image representations from unlabelled images.

The public names load when they are first used, so that importing hirl, or asking its command for help, costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hirl import data as data
    from hirl import evals as evals
    from hirl import explore as explore
    from hirl import export as export
    from hirl import methods as methods
    from hirl.evals.evaluate import evaluate as evaluate
    from hirl.hierarchy.builder import HierarchicalKMeans as HierarchicalKMeans
    from hirl.hierarchy.builder import TreeBuilder as TreeBuilder
    from hirl.hierarchy.builder import hierarchical_kmeans as hierarchical_kmeans
    from hirl.hierarchy.level_search import suggest_levels as suggest_levels
    from hirl.hierarchy.paths import SemanticPaths as SemanticPaths
    from hirl.hierarchy.settings import Hierarchy as Hierarchy
    from hirl.hierarchy.spd import spd_loss as spd_loss
    from hirl.hierarchy.tree import PrototypeTree as PrototypeTree
    from hirl.integrations.scikit_learn import HierarchicalClustering as HierarchicalClustering
    from hirl.run import Run as Run
    from hirl.studies.compare import compare as compare
    from hirl.studies.tune import tune as tune
    from hirl.train.pretrain import pretrain as pretrain
    from hirl.train.recipe import recipe as recipe

_ROOMS = ("data", "evals", "explore", "export", "methods")
_HOMES = {
    "HierarchicalClustering": "hirl.integrations.scikit_learn",
    "HierarchicalKMeans": "hirl.hierarchy.builder",
    "Hierarchy": "hirl.hierarchy.settings",
    "PrototypeTree": "hirl.hierarchy.tree",
    "Run": "hirl.run",
    "SemanticPaths": "hirl.hierarchy.paths",
    "TreeBuilder": "hirl.hierarchy.builder",
    "compare": "hirl.studies.compare",
    "evaluate": "hirl.evals.evaluate",
    "hierarchical_kmeans": "hirl.hierarchy.builder",
    "pretrain": "hirl.train.pretrain",
    "recipe": "hirl.train.recipe",
    "spd_loss": "hirl.hierarchy.spd",
    "suggest_levels": "hirl.hierarchy.level_search",
    "tune": "hirl.studies.tune",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"hirl.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("hirl")
    raise AttributeError(f"module 'hirl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_ROOMS, "__version__"])
