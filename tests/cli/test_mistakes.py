"""A catalogue of wrong command lines and API calls: each ends in one sentence that names the option or value, and
leaves nothing behind.

`{x}` stands for a path: flat (unlabelled images), classes (labelled, in parts), npz (labelled arrays), run (a finished
run), yaml (a recipe), bad (a file that is not YAML), nothing (a path that does not exist).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import hirl
from hirl.cli.main import main
from hirl.data import View

MOCO = "pretrain {npz} --config {yaml}"
LINES: dict[str, str] = {
    # the command itself
    "tarin": "no command 'tarin'",
    "evalute {run}": "did you mean evaluate",
    "--verbose": "no command '--verbose'",
    "pretrain --nonsense": "--nonsense",
    # pretrain: what to train on
    "pretrain": "needs the images",
    "pretrain --method MoCoV2": "needs the images",
    "pretrain {nothing} --method MoCoV2": "nothing",
    "pretrain {bad} --method MoCoV2": "bad.yaml is not a set of images: pass a folder, a .npz or .parquet file",
    "pretrain cifar99 --method MoCoV2": "cifar99",
    "pretrain shapes-9 --method MoCoV2": "9",
    "pretrain shapes-x --method MoCoV2": "shapes-x",
    "pretrain {npz} --config {yaml} --split nowhere": "nowhere",
    "pretrain {npz} --config {yaml} --channels 2": "channels",
    "pretrain {npz} --config {yaml} --channels 0": "channels",
    "pretrain {npz} --config {yaml} --mean 0.5": "mean",
    "pretrain {npz} --config {yaml} --mean red": "--mean",
    "pretrain {npz} --config {yaml} --std 0 0 0": "std",
    "pretrain {npz} --config {yaml} --std 1 1": "std",
    # pretrain: the method
    "pretrain {npz} --method": "--method",
    "pretrain {npz} --method moco": "moco",
    "pretrain {npz} --method MoCo": "MoCo",
    "pretrain {npz} --method os.path": "os.path",
    "pretrain {npz} --method no.such.Method": "no.such.Method",
    "pretrain {npz} --method torch.nn.Linear": "torch.nn.Linear",
    f"{MOCO} --method.backbone resnet9000 --method.backbone_args null": "resnet9000",
    f"{MOCO} --method.backbone_args 3": "--method.backbone_args",
    f"{MOCO} --method.backbone_args.in_chans 1": "in_chans",
    f"{MOCO} --method.dim 0": "dim",
    f"{MOCO} --method.dim -4": "dim",
    f"{MOCO} --method.dim many": "--method.dim",
    f"{MOCO} --method.dim 1.5": "--method.dim",
    f"{MOCO} --method.lr -1": "lr",
    f"{MOCO} --method.lr nan": "lr",
    f"{MOCO} --method.lr fast": "--method.lr",
    f"{MOCO} --method.momentum 2": "momentum",
    f"{MOCO} --method.temperature 0": "temperature",
    f"{MOCO} --method.queue_length 7": "queue_length",
    f"{MOCO} --method.bn_splits 0": "bn_splits",
    f"{MOCO} --method.bn_splits 1000": "bn_splits",
    f"{MOCO} --method.weight_decay -1": "weight_decay",
    f"{MOCO} --method.warmup_epochs -1": "warmup_epochs",
    f"{MOCO} --method.tau 0.2": "--method.tau",
    f"{MOCO} --lr 0.1": "--method.lr",
    # pretrain: the hierarchy
    f"{MOCO} --hierarchy.levels": "--hierarchy.levels",
    f"{MOCO} --hierarchy.levels ten": "--hierarchy.levels",
    f"{MOCO} --hierarchy.levels 4 12": "levels",
    f"{MOCO} --hierarchy.levels 12 12": "levels",
    f"{MOCO} --hierarchy.levels 12 0": "levels",
    f"{MOCO} --hierarchy.levels 5000 10": "levels",
    f"{MOCO} --hierarchy.negatives 0": "negatives",
    f"{MOCO} --hierarchy.negatives few": "--hierarchy.negatives",
    f"{MOCO} --hierarchy.weight -1": "weight",
    f"{MOCO} --hierarchy.weight inf": "weight",
    f"{MOCO} --hierarchy.weight heavy": "--hierarchy.weight",
    f"{MOCO} --hierarchy.head_layers -1": "head_layers",
    f"{MOCO} --hierarchy.start_epoch -1": "start_epoch",
    f"{MOCO} --hierarchy.start_epoch 2": "hierarchy.start_epoch is 2, but must be at most 1 for 2 epochs: use",
    f"{MOCO} --fork_at 1": "--fork_at needs a baseline (--hierarchy null)",
    f"{MOCO} --hierarchy.features cache": "--hierarchy.features",
    f"{MOCO} --hierarchy.assign never": "--hierarchy.assign",
    f"{MOCO} --hierarchy.iterations 10": "--hierarchy.builder.iterations",
    f"{MOCO} --hierarchy.builder.iterations 0": "iterations",
    f"{MOCO} --hierarchy.builder.tolerance 1": "tolerance",
    f"{MOCO} --hierarchy.builder Ward": "Ward",
    f"{MOCO} --hierarchy no": "no",
    f"{MOCO} --hierarchy null --hierarchy.levels 12 4": "hierarchy",
    # pretrain: the run
    f"{MOCO} --epochs 0": "epochs",
    f"{MOCO} --epochs -3": "epochs",
    f"{MOCO} --epochs 1.5": "--epochs",
    f"{MOCO} --epochs all": "--epochs",
    f"{MOCO} --epochs": "--epochs",
    f"{MOCO} --epochs 1": "epochs is 1, but must be at least 2 with a hierarchy, since the first epoch has no tree",
    "pretrain {flat} --encoder null --epochs 1 --accelerator cpu": "use more --epochs, or --hierarchy null",
    f"{MOCO} --epoch 3": "--epochs",
    f"{MOCO} --batch_size 0": "batch_size",
    f"{MOCO} --batch_size 100000": "batch_size",
    f"{MOCO} --batch-size 16": "--batch_size",
    f"{MOCO} --bs 16": "--bs",
    f"{MOCO} --accumulate 0": "accumulate",
    f"{MOCO} --accumulate 7": "accumulate",
    f"{MOCO} --image_size 0": "image_size",
    f"{MOCO} --image_size big": "--image_size",
    f"{MOCO} --seed -1": "seed",
    f"{MOCO} --seed x": "--seed",
    f"{MOCO} --precision 8-bit": "--precision",
    f"{MOCO} --accelerator tpu": "--accelerator",
    f"{MOCO} --accelerator cuda": "accelerator",
    f"{MOCO} --devices none": "--devices",
    f"{MOCO} --nodes 0": "nodes is 0, but must be at least 1",
    f"{MOCO} --knn_every -1": "knn_every is -1, but must be at least 0",
    f"{MOCO} --checkpoint_minutes -1": "checkpoint_minutes is -1.0, but must be at least 0",
    f"{MOCO} --checkpoint_minutes nan": "checkpoint_minutes is nan, but must be at least 0",
    f"{MOCO} --stage_one {{nothing}}": "there is no run folder",
    f"{MOCO} --method.bn_splits 3": "bn_splits is 3",
    f"{MOCO} --workers -1": "workers",
    f"{MOCO} --workers many": "--workers",
    f"{MOCO} --encoder {{nothing}}": "nothing",
    f"{MOCO} --encoder {{flat}}": "flat",
    f"{MOCO} --encoder {{bad}}": "bad.yaml",
    f"{MOCO} --encoder {{other}}": "other",
    f"{MOCO} --out {{bad}}": "bad.yaml",
    f"{MOCO} --out {{flat}}": "flat",
    f"{MOCO} --out {{run}} --epochs 9": "epochs",
    f"{MOCO} --strict maybe": "--strict",
    f"{MOCO} --compile maybe": "--compile",
    f"{MOCO} --config": "--config",
    "pretrain {npz} --config {nothing}": "nothing",
    "pretrain {npz} --config small/moco": "small/moco",
    "pretrain {npz} --config {bad}": "bad.yaml",
    "pretrain {npz} --config {list}": "list.yaml",
    "pretrain {npz} --config {unknown}": "learning_rate",
    "pretrain {npz} --config {elsewhere}": "elsewhere.yaml",
    "pretrain {npz} --config {flat}": "flat",
    # evaluate
    "evaluate": "subject",
    "evaluate {nothing}": "nothing",
    "evaluate {run} transfer": "transfer needs images other than the run's: name them with --data",
    "evaluate {flat} knn": "flat",
    "evaluate {bad} knn --data {npz}": "bad.yaml",
    "evaluate {run}/tree.safetensors knn --data {npz}": "tree.safetensors' is a prototype tree, not an encoder",
    "evaluate {run} knn --cache {bad}": "which is a file, but must be a folder",
    "evaluate resnet9000 knn --data {npz}": "resnet9000",
    "evaluate torchvision:resnet9 knn --data {npz}": "resnet9",
    "evaluate random:resnet10t knn": "data",
    "evaluate random:resnet10t kmn --data {npz}": "kmn",
    "evaluate random:resnet10t hierarchy --data {npz}": "tree",
    "evaluate random:resnet10t knn --data {nothing}": "nothing",
    "evaluate random:resnet10t knn --data {flat}": "name labelled images (hirl evaluate --data",
    "evaluate random:resnet10t knn --data {npz} --test_split nowhere": "nowhere",
    "evaluate random:resnet10t knn --data {npz} --knn.ks 0": "ks",
    "evaluate random:resnet10t knn --data {npz} --knn.ks 100000": "K is 100000, but must be at most",
    "evaluate random:resnet10t knn --data {npz} --knn.ks many": "knn.ks",
    "evaluate random:resnet10t knn --data {npz} --knn.k 5": "--knn.ks",
    "evaluate random:resnet10t knn --data {npz} --knn.ks 5 --knn.temperature 0": "temperature",
    "evaluate random:resnet10t knn --data {npz} --device gpu": "device is 'gpu', but must be one that is here: cpu",
    "evaluate random:resnet10t knn --data {npz} --workers -3": "workers is -3, but must be at least 0",
    "evaluate random:resnet10t knn knn --data {npz}": "named twice",
    "evaluate random:resnet10t knn --data {npz} --seed -1": "seed",
    "evaluate random:resnet10t knn --data {npz} --backbone resnet18": "backbone",
    "evaluate resnet10t knn --data {npz} --weights {nothing}": "nothing",
    "evaluate resnet10t knn --data {npz} --weights {bad}": "bad.yaml",
    "evaluate random:resnet10t linear --data {npz} --linear.rates 0": "rates",
    "evaluate random:resnet10t linear --data {npz} --linear.setting best": "linear.setting",
    "evaluate random:resnet10t linear --data {npz} --linear.setting official": "official",
    "evaluate random:resnet10t semisup --data {npz} --semisup.shares 2": "share",
    "evaluate random:resnet10t semisup --data {npz} --semisup.files {nothing}": "nothing",
    "evaluate random:resnet10t finetune --data {npz} --finetune.epochs 0": "epochs",
    "evaluate random:resnet10t finetune --data {npz} --finetune.level 9": "level",
    "evaluate random:resnet10t tree --data {npz} --tree.neighbours 0": "neighbours",
    "evaluate random:resnet10t tree --data {npz} --tree.levels 3 9": "levels",
    "evaluate {run} knn --image_size 64": "image_size",
    "evaluate {run} detection": "set.npz' has no annotations: name a folder or file in COCO's format",
    "evaluate {run} detection --data {flat}": "has no annotations of its split 'train'",
    "evaluate {run} knn --out {bad}": "bad.yaml",
    # embed, show, runs
    "embed": "subject",
    "embed {run}": "--out",
    "embed {run} --out z.txt": "z.txt",
    "embed {run} --out {nothing}/z.npz": "nothing",
    "embed {flat} --out z.npz": "flat",
    "embed {nothing} --out z.npz": "nothing",
    "embed {run} --out z.npz --device cuda:7": "device is 'cuda:7', but must be one that is here: cpu",
    "embed {run} --out z.npz --workers -2": "workers is -2, but must be at least 0",
    "embed random:resnet10t --out z.npz --data {npz} --image_size 0": "image_size is 0, but must be at least 1",
    "embed {run} --out z.npz --parts 3": "name a folder",
    "embed {run} --out parts --parts 0": "--parts is 0, but must be a whole number of at least 1",
    "embed {run} --out parts --parts 100": "parts is 100, but must be at least 1 and at most the 48 images",
    "show": "run",
    "show {features}": "features.npy' is not a run folder",
    "runs {features}": "is not a folder, but must be a folder of runs",
    "show {nothing}": "nothing",
    "show {flat}": "flat",
    "runs {nothing}": "nothing",
    "runs {flat}": "flat",
    # compare and tune
    "compare": "data",
    "compare {npz}": "recipes",
    "compare {nothing} {yaml}": "nothing",
    "compare {npz} small/moco": "small/moco",
    "compare {npz} {bad}": "bad.yaml",
    "compare {npz} {unknown}": "learning_rate",
    "compare {npz} {yaml} {yaml}": "twice",
    "compare {flat} {yaml}": "labels",
    "compare {npz} {yaml} --seeds -1": "seed",
    "compare {npz} {yaml} --seeds 0 0": "twice",
    "compare {npz} {yaml} --seeds one": "--seeds",
    "compare {npz} {yaml} --tasks kmn": "kmn",
    "compare {npz} {yaml} --epochs 0": "epochs",
    "compare {npz} {yaml} --ablate queue=1": "no setting 'queue'",
    "compare {npz} {yaml} --ablate levels=a": "levels is ['a'], but must be a list",
    "compare {npz} {yaml} --ablate levels=5000,10": "5000",
    "compare {npz} {yaml} --ablate negatives=1,2": "negatives",
    "compare {npz} {yaml} --classes no.such.Class": "no.such.Class",
    "compare {npz} {yaml} --out {bad}": "bad.yaml",
    "compare {npz} {yaml} --out {run}": "which is itself a run: name another folder",
    "compare {npz} {yaml} --epochs_factor 2 --epochs 3": "give one of them",
    "tune {npz} --config {yaml} --out {run}": "which is itself a run: name another folder",
    "tune {npz} --config {yaml} --out {bad}": "which is a file: name a folder",
    "tune {npz} --config {yaml} --held_out 0": "held_out",
    "tune {npz} --config {yaml} --hierarchy null": "--hierarchy is null, but tune searches for the settings of a",
    "tune {npz} --config {yaml} --fork_at 1": "there is no option --fork_at",
    "tune {npz} --config {yaml} --held_out 100000": "held_out",
    "tune {npz} --config {yaml} --levels 3,9": "levels",
    "tune {npz} --config {yaml} --negatives 0": "negatives is 0, but must be at least 1",
    "tune {npz}": "--method is missing",
    "tune {npz} --method null": "--method cannot be null",
    # images, views, cluster
    "images {nothing}": "nothing",
    "images {flat} --out sheet.txt": "sheet.txt",
    "images {flat} --tile 0": "--tile",
    "images {flat} --columns x": "--columns",
    "views {npz} --out v.png": "--method is missing",
    "views {npz} --method DINO": "--out",
    "views {npz} --method dinosaur --out v.png": "dinosaur",
    "views {npz} --method MoCoV2 --image_size 5000 --out v.png": "image_size",
    "cluster": "features",
    "cluster {nothing} --out t.safetensors": "nothing",
    "cluster {bad} --out t.safetensors": "bad.yaml",
    "cluster {features}": "--out",
    "cluster {features} --out t.safetensors --levels 3 9": "levels",
    "cluster {features} --out t.safetensors --levels 9000": "9000",
    "cluster {features} --out t.safetensors --restarts 0": "restarts",
    "cluster {features} --out tree.txt": "--out is 'tree.txt', but must end in .safetensors",
    "cluster {features} --out tree": "--out is 'tree', but must end in .safetensors",
    "cluster {features} --out t.safetensors --builder Nope": "one of HierarchicalKMeans, or package.module.Class",
    "cluster {other} --out t.safetensors": "other.pth' is not a file of features: these are a .npz or .parquet file",
    "demo --images 3": "images is 3, but must be at least",
    "demo --epochs 1": "epochs is 1, but must be at least 2: the first has no tree yet",
    "demo --out {flat}/0.png": "0.png",
    # tree, search, sample, duplicates, tsne, export
    "tree {run} --tree {nothing}": "nothing",
    "tree {run} --names {nothing}": "is not found, but must be a file of node names",
    "tree {run} --node 1-1": "--node is 1-1, but is only for a figure",
    "tree {run} --figure f.doc": "'f.doc', but must end in one of .png, .svg, .pdf",
    "tree {flat} --encoder random:resnet10t --levels 100 3": "levels (100, 3) ask for 100 clusters of only 6 rows",
    "tree {flat} --encoder nonsense": "there is no run folder or file 'nonsense' here",
    "search {run} {nothing}": "there is no image",
    "search {features} {flat}/0.png": "a file of features cannot be searched",
    "sample {run} --size 0": "--size is 0",
    "sample {run} --pick best": "one of typical, spread, unsure",
    "sample {run} --out s.doc": "'s.doc', but must end in one of .txt, .csv, .json, .parquet",
    "sample {run} --tree {features}": "features.npy' is not a prototype tree",
    "sample {run} --device gpu": "device is 'gpu', but must be one that is here: cpu",
    "duplicates {run} --threshold 2": "threshold is 2.0, but must be a cosine, between -1 and 1",
    "duplicates {features}": "does not name its images",
    "tsne {run} --perplexity 0": "--perplexity is 0, but must be a number above 0",
    "tsne {run} --algorithm pca": "--algorithm is pca, but must be one of tsne, umap",
    "export {run} --to onnx": "--out is missing",
    "export {run} --to onx --out e.x": "did you mean onnx?",
    "export {run} --to tflite --out e.x": "--to is tflite, but must be one of onnx",
    "export {run} --to onnx --out e.txt": "an export to onnx is a file named *.onnx, not 'e.txt'",
}

PATHS = torch.zeros(4, 8)
CALLS: dict[str, tuple[Callable[[dict[str, str]], Any], str]] = {
    "an unknown method": (lambda at: hirl.pretrain(at["npz"], "Moco"), "Moco"),  # type: ignore[arg-type]
    "a number for a method": (lambda at: hirl.pretrain(at["npz"], 3), "method is 3"),  # type: ignore[arg-type]
    "True for a hierarchy": (lambda at: hirl.pretrain(at["npz"], method(), True), "hierarchy is True"),  # type: ignore[arg-type]
    "an unknown setting": (lambda at: hirl.pretrain(at["npz"], method(), {"level": 3}), "level"),  # type: ignore[arg-type]
    "a list for a hierarchy": (lambda at: hirl.pretrain(at["npz"], method(), [9, 3]), "[9, 3]"),  # type: ignore[arg-type]
    "None for images": (lambda _: hirl.pretrain(None, method()), "None"),
    "a float for images": (lambda _: hirl.pretrain(3.5, method()), "float"),
    "a negative weight": (lambda _: hirl.Hierarchy(weight=-1), "weight"),
    "rising levels": (lambda _: hirl.Hierarchy(levels=(3, 9)), "levels"),
    "one number for levels": (lambda _: hirl.SemanticPaths(8, 9), "levels"),  # type: ignore[arg-type]
    "paths of dimension 0": (lambda _: hirl.SemanticPaths(0, (9, 3)), "dim"),
    "a negative weight of paths": (lambda _: hirl.SemanticPaths(8, (9, 3), weight=-1), "weight"),
    "z0 of another dimension": (lambda _: hirl.SemanticPaths(9, (9, 3))(PATHS, torch.arange(4)), "z0"),
    "neither index nor target": (lambda _: hirl.SemanticPaths(8, (9, 3))(PATHS), "index"),
    "zero rows": (lambda _: hirl.hierarchical_kmeans(torch.zeros(9, 4), (3,)), "row 0"),
    "too few rows": (lambda _: hirl.hierarchical_kmeans(torch.randn(4, 4), (9,)), "9"),
    "a list of features": (lambda _: hirl.hierarchical_kmeans([[1.0]], (1,)), "features"),  # type: ignore[arg-type]
    "levels for 2 images": (lambda _: hirl.suggest_levels(2), "at least 4 images, not 2"),
    "levels for a float": (lambda _: hirl.suggest_levels(1e6), "is 1000000.0, but must be a whole number such as 1000"),  # type: ignore[arg-type]
    "a tree from a folder": (lambda at: hirl.PrototypeTree.load(at["flat"]), "flat"),
    "a tree from a text": (lambda at: hirl.PrototypeTree.load(at["bad"]), "bad.yaml"),
    "an unknown evaluation": (lambda at: hirl.evaluate("random:resnet10t", "kmn", data=at["npz"]), "kmn"),
    "a list to evaluate": (lambda at: hirl.evaluate([1], "knn", data=at["npz"]), "list"),
    "no data to evaluate": (lambda _: hirl.evaluate("random:resnet10t", "knn"), "data"),
    "an unknown recipe": (lambda _: hirl.recipe("small/moco"), "small/moco"),
    "a view of 0 pixels": (lambda _: View(size=0), "size"),
    "a scale above 1": (lambda _: View(scale=(0.5, 2.0)), "scale"),
    "the encoder of a folder": (lambda at: hirl.Run(at["flat"]).encoder, "flat' is not a run folder"),
    "the tree of a folder": (lambda at: hirl.Run(at["flat"]).tree, "flat' is not a run folder"),
    "the encoder of nothing": (lambda at: hirl.Run(at["nothing"]).encoder, "there is no run folder '"),
    "the tree of nothing": (lambda at: hirl.Run(at["nothing"]).tree, "there is no run folder '"),
    "the configuration of nothing": (lambda at: hirl.Run(at["nothing"]).config, "there is no run folder '"),
    "the configuration of a folder": (lambda at: hirl.Run(at["flat"]).config, "flat"),
    "text for epochs": (lambda at: train(at, epochs="3"), "epochs is '3', but must be a whole number of at least 1"),
    "half an epoch": (lambda at: train(at, epochs=2.5), "epochs is 2.5, but must be a whole number"),
    "no seed": (lambda at: train(at, seed=None), "seed is None, but must be a whole number of at least 0"),
    "text for workers": (lambda at: train(at, workers="4"), "workers is '4', but must be a whole number"),
    "another precision": (lambda at: train(at, precision="16"), "precision is '16', but must be one of 32-true"),
    "another accelerator": (
        lambda at: train(at, accelerator="gpu"),
        "accelerator is 'gpu', but must be one of auto, cpu",
    ),
    "other features": (lambda _: hirl.Hierarchy(features="cache"), "features is 'cache', but must be one of"),  # type: ignore[arg-type]
    "another assignment": (lambda _: hirl.Hierarchy(assign="never"), "assign is 'never', but must be one of"),  # type: ignore[arg-type]
    "a name of a builder": (lambda _: hirl.Hierarchy(builder="ward"), "builder is 'ward', but must be a tree"),  # type: ignore[arg-type]
    "half a neighbour": (lambda at: hirl.evaluate(at["run"], hirl.evals.KNN(ks=(2.5,))), "each a whole number"),  # type: ignore[arg-type]
    "a device by number": (lambda at: hirl.evaluate(at["run"], "knn", device=0), "device is 0, but must be"),  # type: ignore[arg-type]
    "one recipe to compare": (
        lambda at: hirl.compare(at["npz"], "small/dino"),
        "recipes is 'small/dino', but must be a",
    ),
    "one task to compare": (lambda at: hirl.compare(at["npz"], [at["yaml"]], tasks="knn"), "tasks is 'knn', but must"),
    "no method to tune": (lambda at: hirl.tune(at["npz"], None), "method is None, but must be a method"),  # type: ignore[arg-type]
    "Shapes of 3 pixels": (lambda _: hirl.data.Shapes(size=3), "3"),
}


def method() -> hirl.methods.MoCoV2:
    return hirl.methods.MoCoV2(backbone="resnet10t", dim=8, queue_length=16, bn_splits=2)


def train(at: dict[str, str], **changes: Any) -> hirl.Run:
    return hirl.pretrain(at["npz"], method(), **{"epochs": 2, "batch_size": 16, **changes})


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)
    (folder / "flat").mkdir()
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"flat/{number}.png")
    arrays: dict[str, Any] = {}
    for part in ("train", "val"):
        arrays |= {f"{part}_images": rng.integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)}
        arrays |= {f"{part}_labels": np.arange(48) % 3}
    np.savez(folder / "set.npz", allow_pickle=False, **arrays)
    np.save(folder / "features.npy", rng.normal(size=(50, 8)).astype(np.float32))
    arguments: dict[str, Any] = {"backbone": "resnet10t", "backbone_args": {"channels": [4, 4, 8, 8], "stem_width": 4}}
    arguments |= {"dim": 8, "queue_length": 32, "bn_splits": 2}
    recipe = {
        "method": {"class_path": "hirl.methods.MoCoV2", "init_args": arguments},
        "hierarchy": {"levels": [9, 3], "negatives": 4, "start_epoch": 1},
        "epochs": 2,
        "batch_size": 16,
        "accelerator": "cpu",
        "knn_every": 0,
    }
    files = {"yaml": recipe, "list": [1, 2], "unknown": recipe | {"learning_rate": 0.1}}
    files["elsewhere"] = recipe | {"method": {"class_path": "os.path.Method", "init_args": {}}}
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (folder / "bad.yaml").write_text("a: [1\nb: {")
    hirl.pretrain(str(folder / "set.npz"), **hirl.recipe(folder / "yaml.yaml"), out=folder / "run")
    torch.save({"weight": torch.zeros(3)}, folder / "other.pth")
    places = {name: folder / f"{name}.yaml" for name in (*files, "bad")}
    places |= {"npz": folder / "set.npz", "features": folder / "features.npy", "other": folder / "other.pth"}
    places |= {name: folder / name for name in ("flat", "run", "nothing")}
    return {name: str(place) for name, place in places.items()}


def test_the_catalogue_is_long() -> None:
    assert len(LINES) + len(CALLS) >= 150


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_command_line_is_one_sentence(
    line: str,
    at: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(line.format(**at).split())
    error = capsys.readouterr().err.strip()
    assert code == 2, error
    last = error.splitlines()[-1]
    assert last.startswith("hirl: ")
    assert "Traceback" not in error
    assert "\n" not in last
    assert LINES[line] in last
    assert len(last) < 600
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_a_value_error(
    call: str, at: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, expected = CALLS[call]
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (the text is checked below)
        wrong(at)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
