"""Results on disk: found again by their protocol and by nothing less."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hirl.cli.main import main
from hirl.evals import KNN, Clustering, Result, Subject, TreeAgreement
from hirl.run import Run
from hirl.runs.results import find_result, list_results, result_file, write_result
from hirl.terminal.figures import Kind, kind_of

PROTOCOL: dict[str, Any] = {"task": "knn", "arguments": {"ks": (1, 5)}, "seed": 0, "data": {"test": {"count": 9}}}
FIGURES: dict[str, Any] = {"headline": {"4 classes": 0.5}, "kinds": {"headline": {"4 classes": "share"}}}


def test_a_result_is_found_by_its_protocol(tmp_path: Path) -> None:
    file = write_result(tmp_path, PROTOCOL, FIGURES)
    assert file.name.startswith("knn-")
    found = find_result(tmp_path, PROTOCOL)
    assert found is not None
    assert found["headline"] == {"4 classes": 0.5}
    assert {"versions", "time"} <= found.keys()


@pytest.mark.parametrize("change", [{"seed": 1}, {"arguments": {"ks": (1,)}}, {"data": {"test": {"count": 8}}}])
def test_another_protocol_is_another_file(change: dict[str, Any], tmp_path: Path) -> None:
    file = write_result(tmp_path, PROTOCOL, FIGURES)
    assert find_result(tmp_path, PROTOCOL | change) is None
    other = write_result(tmp_path, PROTOCOL | change, FIGURES)
    assert other != file
    assert set(list_results(tmp_path)) == {file, other}
    # Even under the right name, a file of another protocol is not taken.
    shutil.copy(other, result_file(tmp_path, PROTOCOL))
    assert find_result(tmp_path, PROTOCOL) is None


def test_damaged_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    file = write_result(tmp_path, PROTOCOL, FIGURES)
    file.write_text(file.read_text()[:-20])
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.warns(UserWarning, match="is damaged or of another version; the result is computed again"):
        assert find_result(tmp_path, PROTOCOL) is None
    assert list_results(tmp_path) == {}
    assert list_results(tmp_path / "nowhere") == {}


# What `evaluate` does with them


def never(_self: Any, _subject: Subject) -> Result:
    raise AssertionError("computed again")


def test_the_same_protocol_is_not_computed_again(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run, tasks = runs["hirl"], (KNN(ks=(5, 10)), Clustering(restarts=1), TreeAgreement(sample=50))
    first = run.evaluate(*tasks, device="cpu", quiet=True)
    for task in tasks:
        monkeypatch.setattr(type(task), "run", never)
    again = run.evaluate(*tasks, device="cpu", quiet=True, reuse=True)
    assert again == first
    assert {kind_of(value) for value in again["tree"].headline.values()} == {Kind.SHARE, Kind.SCORE}
    assert kind_of(again["knn"].rows[0]["accuracy"]) is Kind.SHARE
    with pytest.raises(AssertionError, match="computed again"):
        run.evaluate(tasks[0], device="cpu", quiet=True)


def test_any_change_of_the_protocol_is_computed(
    runs: dict[str, Run], picture_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["hirl"]
    run.evaluate(KNN(ks=(5, 10)), device="cpu", quiet=True)
    monkeypatch.setattr(KNN, "run", never)
    other = shutil.copy(picture_files, tmp_path / "other.npz")
    changes: list[tuple[KNN, dict[str, Any]]] = [
        (KNN(ks=(5,)), {}),
        (KNN(ks=(5, 10), temperature=0.1), {}),
        (KNN(ks=(5, 10)), {"seed": 1}),
        (KNN(ks=(5, 10)), {"test_data": other}),
        (KNN(ks=(5, 10)), {"test_split": "train"}),
        (KNN(ks=(5, 10)), {"data": other}),
    ]
    for task, options in changes:
        with pytest.raises(AssertionError, match="computed again"):
            run.evaluate(task, device="cpu", quiet=True, reuse=True, **options)
    run.evaluate(KNN(ks=(5, 10)), data=picture_files, device="cpu", quiet=True, reuse=True)  # the run's own, by name


def test_a_changed_tree_is_another_protocol_of_the_task_tree_alone(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tasks = runs["hirl"], (KNN(ks=(5, 10)), TreeAgreement(sample=50))
    run.evaluate(*tasks, device="cpu", quiet=True)
    for task in tasks:
        monkeypatch.setattr(type(task), "run", never)
    shutil.copy(runs["hirl"].tree_file, runs["hirl"].folder / "copy")
    tree = run.tree
    type(tree)(tree.prototypes, tree.parents, tree.leaves.roll(1)).save(run.tree_file)
    run.evaluate(tasks[0], device="cpu", quiet=True, reuse=True)
    with pytest.raises(AssertionError, match="computed again"):
        run.evaluate(tasks[1], device="cpu", quiet=True, reuse=True)


def test_protocols_of_one_task_stand_side_by_side(runs: dict[str, Run], picture_files: Path, tmp_path: Path) -> None:
    run = runs["hirl"]
    other = shutil.copy(picture_files, tmp_path / "other.npz")
    for task, data in ((KNN(ks=(5,)), None), (KNN(ks=(1,)), None), (KNN(ks=(5,)), other)):
        run.evaluate(task, data=data, device="cpu", quiet=True)
    protocols = [json.loads(file.read_text())["protocol"] for file in run.results_folder.iterdir()]
    found = [
        (protocol["arguments"]["ks"], Path(protocol["data"]["test"]["name"]).parent.name) for protocol in protocols
    ]
    assert sorted(found) == [([1], "shapes.npz"), ([5], "other.npz"), ([5], "shapes.npz")]


def test_hirl_show_tells_results_of_one_task_apart(
    runs: dict[str, Run],
    picture_files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = runs["hirl"]
    for task, options in ((KNN(), {}), (KNN(ks=(1,)), {}), (KNN(ks=(1,)), {"seed": 1}), (Clustering(), {})):
        run.evaluate(task, device="cpu", quiet=True, **options)
    run.evaluate(KNN(ks=(3,)), data=shutil.copy(picture_files, tmp_path / "other.npz"), device="cpu", quiet=True)
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", str(run.folder)]) == 0
    shown = capsys.readouterr().out
    for settings in ("ks 10 20 100 200, seed 0", "ks 1, seed 0", "ks 1, seed 1"):
        assert settings in shown
    assert "ks 3" not in shown  # the only one on its images
    assert main(["show", str(run.folder), "--page"]) == 0
    assert "(ks 1, seed 1)" in (run.folder / "page" / "index.html").read_text(encoding="utf-8")
