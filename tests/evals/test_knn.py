"""KNN against brute force and scikit-learn, and the search for neighbours in chunks and groups."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from hirl.evals.base import Subject
from hirl.evals.knn import KNN
from hirl.metrics import neighbours
from hirl.metrics.knn import KS, fitting_ks, knn_accuracy
from hirl.metrics.neighbours import nearest_rows

CLASSES = (6, 3)


def problem(train: int, test: int, dim: int = 8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Overlapping classes at two levels, so that votes matter."""
    generator = torch.Generator().manual_seed(0)
    middle = torch.randn(CLASSES[0], dim, generator=generator)
    sets = []
    for count in (train, test):
        fine = torch.arange(count) % CLASSES[0]
        features = middle[fine] + 1.5 * torch.randn(count, dim, generator=generator)
        sets += [features, torch.stack([fine, fine // 2], dim=1)]
    return sets[0], sets[1], sets[2], sets[3]


def brute_force(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, k: int, temperature: float
) -> list[float]:
    """Image by image, neighbour by neighbour."""
    right = [0] * train_labels.shape[1]
    for query, truth in zip(test, test_labels, strict=True):
        cosines = [float(F.cosine_similarity(query, row, dim=0)) for row in train]
        near = sorted(range(len(train)), key=lambda place: -cosines[place])[:k]
        for level in range(train_labels.shape[1]):
            votes: dict[int, float] = {}
            for place in near:
                label = int(train_labels[place, level])
                votes[label] = votes.get(label, 0.0) + float(np.exp(cosines[place] / temperature))
            right[level] += max(votes, key=lambda label: votes[label]) == int(truth[level])
    return [count / len(test) for count in right]


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_equal_to_brute_force(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CHUNK", 1000)  # several chunks, the last one smaller
    sets = problem(103, 31)
    ks = (7, 1, 103)
    found = knn_accuracy(*sets, ks=ks, temperature=temperature)
    assert found.shape == (3, 2)
    for place, k in enumerate(ks):
        assert found[place].tolist() == brute_force(*sets, k, temperature)
    assert 0.2 < float(found[0, 0]) < 0.95


@pytest.mark.parametrize("k", [5, 40])
def test_equal_to_scikit_learn(k: int) -> None:
    train, train_labels, test, test_labels = problem(240, 60)
    for level in range(2):
        other = KNeighborsClassifier(
            n_neighbors=k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
        )
        other.fit(train.numpy(), train_labels[:, level].numpy())
        expected = float((other.predict(test.numpy()) == test_labels[:, level].numpy()).mean())
        found = knn_accuracy(train, train_labels, test, test_labels, ks=(k,), temperature=0.07)
        assert float(found[0, level]) == expected


def test_a_cold_vote_does_not_overflow() -> None:
    sets = problem(60, 12)
    assert knn_accuracy(*sets, ks=(60,), temperature=1e-3).tolist() == knn_accuracy(*sets, ks=(1,)).tolist()


@pytest.mark.parametrize(("N", "k"), [(1000, 10), (1003, 7), (999, 40), (50, 50), (17, 1), (64, 1)])
def test_neighbours_are_those_of_a_full_sort(N: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(N)
    rows, queries = torch.randn(N, 6, generator=generator), torch.randn(23, 6, generator=generator)
    monkeypatch.setattr(neighbours, "CHUNK", 5 * N)
    cosines = F.normalize(queries, dim=1) @ F.normalize(rows, dim=1).T
    expected = cosines.sort(dim=1, descending=True)
    found = list(nearest_rows(rows, queries, k))
    assert len(found) > 1
    torch.testing.assert_close(torch.cat([chunk.similar for chunk in found]), expected.values[:, :k])
    assert torch.equal(torch.cat([chunk.rows for chunk in found]), expected.indices[:, :k])
    covered = torch.cat([torch.arange(23)[chunk.queries] for chunk in found])
    assert torch.equal(covered, torch.arange(23))


@pytest.mark.parametrize(("N", "k"), [(1000, 10), (1003, 7), (999, 400), (50, 50)])
def test_chunks_of_rows_change_nothing(N: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does half precision, beyond its rounding."""
    generator = torch.Generator().manual_seed(N)
    rows, queries = torch.randn(N, 6, generator=generator), torch.randn(23, 6, generator=generator)
    expected = (F.normalize(queries, dim=1) @ F.normalize(rows, dim=1).T).sort(dim=1, descending=True)
    monkeypatch.setattr(neighbours, "ROWS", 6 * 130)
    monkeypatch.setattr(neighbours, "QUERIES", 9)
    monkeypatch.setattr(neighbours, "CHUNK", 4 * 130)
    found = list(nearest_rows(rows, queries, k))
    torch.testing.assert_close(torch.cat([chunk.similar for chunk in found]), expected.values[:, :k])
    assert torch.equal(torch.cat([chunk.rows for chunk in found]), expected.indices[:, :k])
    covered = torch.cat([torch.arange(23)[chunk.queries] for chunk in found])
    assert torch.equal(covered, torch.arange(23))
    half = torch.cat([chunk.similar for chunk in nearest_rows(rows.half(), queries.half(), k)])
    torch.testing.assert_close(half, expected.values[:, :k], atol=2e-3, rtol=0)


MEASURE = """
import pathlib, sys, threading, time
import numpy as np, torch
import hirl.metrics.neighbours as neighbours
from hirl.metrics.knn import knn_accuracy

torch.set_num_threads(1)
neighbours.ROWS, neighbours.CHUNK, neighbours.QUERIES = 1 << 21, 1 << 19, 256

def own():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def measured(rows):
    labels = torch.arange(len(rows))[:, None] % 4
    most, done = 0, threading.Event()

    def watch():
        nonlocal most
        while not done.wait(0.001):
            most = max(most, own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    knn_accuracy(rows, labels, rows[:300], labels[:300], ks=(20, 200))
    done.set()
    watcher.join()
    return most

measured(torch.randn(2048, 8).half())  # what libraries allocate once
before = own()
for file in sys.argv[1:]:
    print((measured(torch.from_numpy(np.load(file, mmap_mode="r+"))) - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of a process's own memory")
def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """Half-precision features in mapped files of 32 and 96 MiB, searched in chunks that are 1/16 of the usual ones."""
    files = []
    for count in (8 * 1024, 24 * 1024):
        files.append(tmp_path / f"{count}.npy")
        rows = np.lib.format.open_memmap(files[-1], "w+", dtype=np.float16, shape=(count, 2048))
        rows[:] = np.random.default_rng(0).standard_normal(2048, dtype=np.float32).astype(np.float16)
        rows[:, 0] = np.arange(count) % 7
        rows.flush()
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = [float(line) for line in done.stdout.split()]  # MiB
    assert max(peaks) < 1024 / 16
    assert peaks[1] < peaks[0] + 8  # a chunk has 8 MiB


def test_repeated_rows_are_found_as_often_as_they_are_there() -> None:
    rows = F.normalize(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), dim=1).repeat(100, 1)
    found = next(nearest_rows(rows, rows[:5], 30))
    assert found.similar.min() > 0.999
    assert torch.equal(found.rows % 5, torch.arange(5)[:, None].expand(-1, 30))
    assert all(len(row.unique()) == 30 for row in found.rows)


def test_the_result_has_each_k_and_the_best(coloured_subject: Callable[..., Subject]) -> None:
    subject = coloured_subject()
    result = KNN(ks=(1, 5, 20)).run(subject)
    assert [(row["labels"], row["K"]) for row in result.rows] == [
        (name, k) for name in ("4 classes", "2 classes") for k in (1, 5, 20)
    ]
    for name in ("4 classes", "2 classes"):
        of = [row for row in result.rows if row["labels"] == name]
        assert result.headline[name] == max(row["accuracy"] for row in of)
        assert next(row["K"] for row in of if row["best"]) == result.chosen[f"K at {name}"]
    assert result.headline["2 classes"] >= result.headline["4 classes"] > 0.25


@pytest.mark.parametrize(
    ("count", "used", "printed"),
    [
        (60, (10, 20, 100, 200), None),
        (30, (10, 20, 100), "knn: K = 200 left out, being more than the 120 training images"),
        (2, (8,), "knn: K = 10, 20, 100, 200 left out, being more than the 8 training images; K = 8 instead"),
    ],
)
def test_of_the_usual_ks_those_that_fit_are_used(
    count: int, used: tuple[int, ...], printed: str | None, coloured_subject: Callable[..., Subject]
) -> None:
    lines: list[str] = []
    result = KNN().run(coloured_subject(count=count, message=lines.append))
    assert tuple(row["K"] for row in result.rows if row["labels"] == "4 classes") == used == fitting_ks(4 * count)
    assert lines == ([] if printed is None else [printed])
    assert KNN().arguments["ks"] == KS  # so that results stored before are still found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": (10, 161)}, "K is 161, but must be at most the number of training images, 160"),
        ({"ks": ()}, "at least one"),
        ({"ks": (0,)}, "at least 1"),
        ({"ks": (1,), "temperature": 0.0}, "temperature is 0.0, but must be above 0"),
    ],
)
def test_impossible_arguments_are_refused(
    options: dict[str, object], message: str, coloured_subject: Callable[..., Subject]
) -> None:
    with pytest.raises(ValueError, match=message):
        KNN(**options).run(coloured_subject())  # type: ignore[arg-type]
