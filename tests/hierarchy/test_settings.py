"""HIRL's settings: what is chosen for those that are not given."""

from __future__ import annotations

import pytest

from hirl.hierarchy.builder import POOLED_FEATURES, HierarchicalKMeans
from hirl.hierarchy.settings import Hierarchy, HierarchyDefaults


@pytest.mark.parametrize(("head_layers", "usual"), [(0, POOLED_FEATURES), (2, HierarchicalKMeans())])
def test_the_builder_depends_on_the_heads_unless_it_is_given(head_layers: int, usual: HierarchicalKMeans) -> None:
    defaults = HierarchyDefaults(head_layers=head_layers)
    assert Hierarchy().resolve(1000, 10, defaults).builder == usual
    for given in (HierarchicalKMeans(order="top-down"), POOLED_FEATURES):  # the first equals the default object
        assert Hierarchy(builder=given).resolve(1000, 10, defaults).builder == given


def test_the_builder_of_a_resolved_hierarchy_stays() -> None:
    resolved = Hierarchy().resolve(1000, 10, HierarchyDefaults(head_layers=0))
    assert resolved.resolve(1000, 10).builder == POOLED_FEATURES


def test_a_single_leaf_has_no_negatives() -> None:
    with pytest.raises(ValueError, match=r"levels is \(1,\), but the finest level needs at least 2 nodes"):
        Hierarchy(levels=(1,))
