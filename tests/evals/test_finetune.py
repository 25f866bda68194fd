"""Fine-tuning: schedules, rates per layer, the encoder after training, and coarser label levels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor

from hirl.data.sources.arrays import ArrayImages
from hirl.encoders.backbones import outline
from hirl.evals.base import Subject
from hirl.evals.finetune import FineTune
from hirl.evals.labels import accuracies
from hirl.evals.training import classifier_training, resumable
from hirl.evals.training.classifier_training import Classifier, ClassifierTraining, Supervision
from hirl.evals.training.learning_rates import make_optimiser, param_groups
from hirl.evals.training.regularisation import PLAIN
from hirl.evals.training.training_settings import (
    FINE_TUNE_CNN,
    FINE_TUNE_VIT,
    SEMI_VIT,
    TrainingSettings,
    fine_tune_vit,
    fitting_batch,
    semi_vit,
)
from hirl.metrics.agreement import parents

Make = Callable[..., Subject]


def test_schedules() -> None:
    cnn, vit = FINE_TUNE_CNN, FINE_TUNE_VIT
    assert [cnn.share(epoch) for epoch in (0, 11.9, 12, 15.9, 16)] == pytest.approx([1, 1, 0.2, 0.2, 0.04])
    end = 1e-6 / 4e-3
    assert [vit.share(epoch) for epoch in (0, 10, 20, 60, 100)] == pytest.approx([0, 0.5, 1, (1 + end) / 2, end])
    short = vit.for_images(10**6, epochs=10)
    assert [short.share(epoch) for epoch in (1, 2, 6, 10)] == pytest.approx([0.5, 1, (1 + end) / 2, end])


@pytest.mark.parametrize(
    ("images", "batch"), [(10**6, 1024), (51200, 1024), (51199, 512), (5000, 64), (160, 16), (100, 16), (12, 12)]
)
def test_few_images_get_a_smaller_batch_and_rates_that_follow(images: int, batch: int) -> None:
    assert fitting_batch(1024, images) == batch
    settings = FINE_TUNE_CNN.for_images(images)
    assert settings.batch_size == batch
    assert settings.encoder_lr == pytest.approx(0.1 * batch / 1024)
    assert settings.classifier_lr == pytest.approx(1.0 * batch / 1024)
    assert FINE_TUNE_VIT.for_images(images).encoder_lr == pytest.approx(4e-3 * (batch / 1024) ** 0.5)


def test_options_replace_the_settings() -> None:
    settings = FINE_TUNE_CNN.for_images(5000, epochs=10, batch_size=128, encoder_lr=0.4, classifier_lr=2.0)
    assert (settings.epochs, settings.batch_size, settings.milestones) == (10, 128, (6, 8))
    assert (settings.encoder_lr, settings.classifier_lr) == (0.4 / 8, 2.0 / 8)


def test_each_layer_of_a_transformer_learns_slower_than_the_one_above(coloured_subject: Make) -> None:
    classifier = Classifier(coloured_subject("vit"), [4], FINE_TUNE_VIT)
    groups = param_groups(classifier.encoder, classifier.heads, FINE_TUNE_VIT)
    rate = {id(parameter): group["peak"] for group in groups for parameter in group["params"]}
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert len(rate) == sum(len(group["params"]) for group in groups) == len(list(classifier.parameters()))
    powers = {  # of the layer decay
        "heads.0.weight": 0,
        "heads.0.bias": 0,
        "encoder.norm.weight": 0,  # as in BEiT, which counts it with the classifier
        "encoder.blocks.1.attn.qkv.weight": 1,
        "encoder.blocks.1.mlp.fc2.bias": 1,
        "encoder.blocks.0.attn.qkv.weight": 2,
        "encoder.blocks.0.norm1.weight": 2,
        "encoder.patch_embed.proj.weight": 3,
        "encoder.cls_token": 3,
        "encoder.pos_embed": 3,
    }
    parameters = dict(classifier.named_parameters())
    for name, power in powers.items():
        assert rate[id(parameters[name])] == pytest.approx(4e-3 * 0.65**power), name
    for name, parameter in parameters.items():
        spared = parameter.ndim == 1 or name.endswith(("cls_token", "pos_embed"))
        assert decay[id(parameter)] == (0 if spared else 0.05), name


def test_a_transformers_settings_follow_its_size() -> None:
    """As iBOT publishes them: epochs, drop path and layer decay of ViT-S, ViT-B and ViT-L."""
    wanted = {192: (200, 0.1, 0.75), 384: (200, 0.1, 0.75), 768: (100, 0.2, 0.65), 1024: (50, 0.4, 0.75)}
    for width, values in wanted.items():
        settings = fine_tune_vit(width)
        assert (settings.epochs, settings.regularisation.drop_path, settings.layer_decay) == values
        assert settings.warmup_epochs == (5 if width == 1024 else 20)
        assert semi_vit(0.01, width).regularisation.drop_path == values[1]
        assert semi_vit(0.01, width) == replace(SEMI_VIT[0.01], regularisation=settings.regularisation)
    assert fine_tune_vit(768) == FINE_TUNE_VIT


@pytest.mark.parametrize(
    ("backbone", "values"), [("vit_small_patch16_224", (0.1, 0.75)), ("vit_base_patch16_224", (0.2, 0.65))]
)
def test_the_encoder_decides_on_its_settings(
    backbone: str, values: tuple[float, float], coloured_subject: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = replace(coloured_subject("vit"), encoder=outline(backbone))
    given: list[TrainingSettings] = []

    def tuned(_self: FineTune, _subject: Subject, _images: Any, settings: TrainingSettings, *, task: str) -> list[Any]:
        assert task == "finetune"
        given.append(settings)
        return []

    monkeypatch.setattr(FineTune, "_fine_tune", tuned)
    FineTune().run(subject)
    FineTune(layer_decay=0.5, drop_path=0.3, epochs=7).run(subject)
    assert (given[0].regularisation.drop_path, given[0].layer_decay) == values
    assert (given[1].regularisation.drop_path, given[1].layer_decay, given[1].epochs) == (0.3, 0.5, 7)


def test_a_layer_decay_that_makes_no_sense_is_refused(coloured_subject: Make) -> None:
    with pytest.raises(ValueError, match=r"layer_decay is 1\.5, but must be above 0 and at most 1"):
        FineTune(layer_decay=1.5).run(coloured_subject("vit"))


def test_encoder_and_classifier_of_a_cnn_have_their_own_rates(coloured_subject: Make) -> None:
    classifier = Classifier(coloured_subject("cnn"), [4], FINE_TUNE_CNN)
    optimiser = make_optimiser(classifier.encoder, classifier.heads, FINE_TUNE_CNN)
    heads, encoder = optimiser.param_groups
    assert (heads["lr"], encoder["lr"]) == (1.0, 0.1)
    assert len(heads["params"]) == 2
    assert len(encoder["params"]) == len(list(classifier.encoder.parameters()))
    assert all(group["momentum"] == 0.9 and group["weight_decay"] == 0 for group in (heads, encoder))


@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_it_learns_on_a_copy_the_same_in_every_run(coloured_subject: Make, kind: str) -> None:
    calls = []
    subject = coloured_subject(kind, progress=lambda *call: calls.append(call))
    before = copy.deepcopy(subject.encoder.state_dict())
    state = torch.get_rng_state()
    evaluation = FineTune(epochs=5, regularisation="plain")
    result = evaluation.run(subject)
    assert result.headline["4 classes"] > 0.9
    assert result.chosen["optimiser"] == ("adamw" if kind == "vit" else "sgd")
    assert result.chosen["batch_size"] == 16
    assert all(torch.equal(value, before[name]) for name, value in subject.encoder.state_dict().items())
    assert not any(parameter.requires_grad for parameter in subject.encoder.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert ("finetune", 50, 50) in calls
    assert evaluation.run(subject) == result


@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_every_parameter_of_the_encoder_learns_along(coloured_subject: Make, kind: str) -> None:
    subject = coloured_subject(kind)
    settings = (FINE_TUNE_VIT if kind == "vit" else FINE_TUNE_CNN).for_images(160, epochs=1, encoder_lr=1.0)
    classifier = Classifier(subject, [4], settings)
    assert subject.train.labels is not None
    Supervision(subject, settings, "finetune").learn(classifier, subject.train, subject.train.labels[:, :1])
    before = dict(subject.encoder.named_parameters())
    for name, parameter in classifier.encoder.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert not classifier.training


def test_the_family_may_be_chosen(coloured_subject: Make) -> None:
    assert FineTune(epochs=1, family="vit").run(coloured_subject("cnn")).chosen["optimiser"] == "adamw"


def test_the_seed_decides(coloured_subject: Make) -> None:
    evaluation = FineTune(epochs=1)
    found = [evaluation.run(coloured_subject("cnn", seed=seed)).headline for seed in range(3)]
    assert found[0] != found[1] or found[0] != found[2]


def test_a_scaler_of_gradients_continues_too(
    coloured_subject: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16, which Fabric offers on a GPU only: the scale, which grows every other step, is in the checkpoint."""

    def half(*_: object, **__: object) -> Fabric:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9, growth_interval=2)
        return Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])

    monkeypatch.setattr(classifier_training, "launch", half)
    monkeypatch.setattr(resumable, "SAVE_EVERY", 0.0)
    evaluation, subject = FineTune(epochs=1, regularisation="plain"), coloured_subject("vit")
    evaluation.run(replace(subject, folder=tmp_path / "alone"))
    step = ClassifierTraining._step

    def interrupted(self: ClassifierTraining, module: Any, optimiser: Any, number: int, pieces: Any) -> Tensor:
        if number == 5:
            raise KeyboardInterrupt
        return step(self, module, optimiser, number, pieces)

    monkeypatch.setattr(ClassifierTraining, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluation.run(replace(subject, folder=tmp_path / "stopped"))
    left = torch.load(tmp_path / "stopped" / "finetune.ckpt", weights_only=True)
    assert (left["step"], left["precision"]["scale"]) == (5, 2.0**11)
    monkeypatch.setattr(ClassifierTraining, "_step", step)
    evaluation.run(replace(subject, folder=tmp_path / "stopped"))
    ends = [torch.load(tmp_path / name / "finetune.ckpt", weights_only=True) for name in ("alone", "stopped")]
    assert all(torch.equal(value, ends[1]["classifier"][name]) for name, value in ends[0]["classifier"].items())


def test_mixed_precision_and_accumulated_parts(coloured_subject: Make) -> None:
    """bf16 learns as well; without batch norm, four parts of a batch are the same step as one."""
    subject = coloured_subject("vit")
    assert subject.train.labels is not None
    settings = replace(FINE_TUNE_VIT, regularisation=PLAIN).for_images(160, epochs=1)
    ends = []
    for precision, accumulate in (("32-true", 1), ("32-true", 4), ("bf16-mixed", 1)):
        classifier = Classifier(subject, [4], settings)
        training = Supervision(subject, settings, "finetune", precision, accumulate)  # type: ignore[arg-type]
        training.learn(classifier, subject.train, subject.train.labels[:, :1])
        ends.append(torch.cat([weight.flatten() for weight in classifier.parameters()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)
    assert not torch.equal(ends[0], ends[2])
    torch.testing.assert_close(ends[0], ends[2], rtol=0, atol=0.02)


# --- on a GPU, which should not be made to wait ---


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """There is none here: training only behaves as if a look at a loss made the device wait."""
    monkeypatch.setattr(ClassifierTraining, "_waits", True)
    monkeypatch.setattr(resumable, "CHECK_EVERY", every)


def noting(name: str, called: list[str]) -> Callable[..., Any]:
    """A method of tensors that notes its calls."""
    original = getattr(Tensor, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        called.append(name)
        return original(*arguments, **options)

    return noted


def test_losses_are_looked_at_every_few_steps_on_a_gpu(coloured_subject: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the network learns the same."""
    evaluation = FineTune(epochs=2, accumulate=2, regularisation="plain")  # erasing is timm's, image by image
    subject = coloured_subject("vit", count=20)
    expected = evaluation.run(subject)
    as_on_a_gpu(monkeypatch, every=3)
    steps: list[int] = []
    looks: list[int] = []
    reads: list[str] = []
    step, look = ClassifierTraining._step, ClassifierTraining._check_losses

    def noted_step(self: ClassifierTraining, module: Any, optimiser: Any, number: int, pieces: Any) -> Tensor:
        steps.append(number)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("__bool__", "__float__", "cpu", "tolist"):  # AdamW counts steps on the CPU, by item
                patch.setattr(Tensor, name, noting(name, reads))
            return step(self, module, optimiser, number, pieces)

    def noted_look(self: ClassifierTraining) -> None:
        looks.append(steps[-1] + 1)
        look(self)

    monkeypatch.setattr(ClassifierTraining, "_step", noted_step)
    monkeypatch.setattr(ClassifierTraining, "_check_losses", noted_look)
    assert evaluation.run(subject) == expected
    assert steps == list(range(10))
    assert looks == [3, 6, 9, 10]
    assert reads == []


@pytest.mark.parametrize(("bad", "kept"), [(3, None), (6, 5), (11, 10)])
def test_no_checkpoint_has_seen_a_loss_that_nobody_looked_at(
    bad: int, kept: int | None, coloured_subject: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that is not finite is found at the next look, and the state saved before is that of the look before."""
    as_on_a_gpu(monkeypatch, every=5)
    monkeypatch.setattr(resumable, "SAVE_EVERY", 0.0)
    losses = ClassifierTraining.losses

    def spoilt(self: ClassifierTraining, module: Any, piece: Any, step: int, part: int) -> dict[str, Tensor]:
        found = losses(self, module, piece, step, part)
        return {name: loss * (torch.nan if step == bad else 1) for name, loss in found.items()}

    monkeypatch.setattr(ClassifierTraining, "losses", spoilt)
    monkeypatch.setattr(
        ClassifierTraining, "divergence_message", lambda _self, step, _losses: f"not finite at step {step}"
    )
    subject = replace(coloured_subject("vit", count=24), folder=tmp_path)  # 6 steps per epoch
    with pytest.raises(ValueError, match=f"not finite at step {bad}$"):
        FineTune(epochs=2, regularisation="plain").run(subject)
    file = tmp_path / "finetune.ckpt"
    assert file.is_file() == (kept is not None)
    if kept is not None:
        state = torch.load(file, weights_only=True)
        assert state["step"] == kept
        assert all(value.isfinite().all() for value in state["classifier"].values())


# --- label levels ---


def test_coarser_predictions_follow_from_finer_ones() -> None:
    known = torch.tensor([[0, 0, 0], [1, 0, 1], [2, 1, 0], [3, 1, 1]])  # the last level is not nested … in level 1
    assert parents(known, 0, 1) is not None
    assert parents(known, 0, 1).tolist() == [0, 0, 1, 1]  # type: ignore[union-attr]
    assert parents(known, 1, 2) is None
    names = (("a", "b", "c", "d"), ("ab", "cd"), ("ac", "bd"))
    images = ArrayImages(name="x", pixels=torch.zeros(4, 3, 1, 1, dtype=torch.uint8), labels=known, label_names=names)
    predictions = torch.tensor([1, 1, 3, 3])
    rows = accuracies(predictions, known, known, level=0, images=images)
    assert [row["accuracy"] for row in rows] == [0.5, 1.0, 0.5]
    assert [row["prediction"] for row in rows] == ["learnt", "parent of the finer class", "parent of the finer class"]
    rows = accuracies(torch.tensor([0, 0, 1, 0]), known, known, level=1, images=images)
    assert [row["accuracy"] for row in rows] == [0.75]  # a class of level 1 lies in two of level 2


def test_a_coarser_level_may_be_learnt(coloured_subject: Make) -> None:
    result = FineTune(level=1, epochs=3).run(coloured_subject())
    assert list(result.headline) == ["2 classes"]
    assert result.headline["2 classes"] > 0.9


# --- refusals ---


def test_refusals(coloured_subject: Make) -> None:
    subject = coloured_subject()
    with pytest.raises(ValueError, match=r"level is 2, but train has the label levels 0 \(finest\) to 1"):
        FineTune(level=2).run(subject)
    with pytest.raises(ValueError, match="family is 'rnn', but must be one of 'cnn', 'vit'"):
        FineTune(family="rnn").run(subject)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="encoder_lr is 0, but the encoder has to learn"):
        FineTune(encoder_lr=0.0).run(subject)
    with pytest.raises(ValueError, match=r"diverged in epoch 1 of 2 at a peak rate of .*: choose lower ones"):
        FineTune(epochs=2, encoder_lr=1e30).run(subject)
    unlabelled = ArrayImages(name="bare", pixels=torch.zeros(20, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="bare has no labels"):
        FineTune().run(replace(subject, parts={**subject.parts, "train": unlabelled}))
