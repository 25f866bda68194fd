"""The tree as a scikit-learn estimator."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import hirl


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts_it() -> None:
    results = check_estimator(hirl.HierarchicalClustering())
    assert len(results) > 40
    assert {result["check_name"] for result in results if result["status"] != "passed"} == {"check_array_api_input"}


def test_every_level_is_there() -> None:
    dice = np.random.default_rng(0)
    coarse, fine = dice.normal(size=(3, 8)), np.repeat(np.arange(12), 10)
    features = 3 * coarse[fine // 4] + dice.normal(size=(12, 8))[fine] + 0.05 * dice.normal(size=(120, 8))
    model = hirl.HierarchicalClustering(levels=(12, 3)).fit(features)
    assert adjusted_rand_score(model.labels_, fine // 4) == 1
    assert adjusted_rand_score(model.paths_[:, 0], fine) > 0.8
    assert np.array_equal(model.predict_paths(features), model.paths_)
    assert np.array_equal(model.set_params(level=0).predict(features), model.paths_[:, 0])
    assert model.transform(features).shape == (120, 12)
    assert list(model.get_feature_names_out())[:1] == ["hierarchicalclustering0"]
    assert make_pipeline(StandardScaler(), hirl.HierarchicalClustering((12, 3))).fit_predict(features).max() == 2


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="level is 2, but there are 2 levels"):
        hirl.HierarchicalClustering((4, 2), level=2).fit(np.eye(8))
    with pytest.raises(ValueError, match="levels must decrease"):
        hirl.HierarchicalClustering((2, 4)).fit(np.eye(8))
