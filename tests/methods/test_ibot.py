"""Each detail of iBOT that a re-implementation may get wrong. What it shares with DINO is tested there."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from lightly.loss import DINOLoss, IBOTPatchLoss
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hirl.data.views import BlockMask
from hirl.data.views.masks import uploaded_mask
from hirl.encoders.backbones import tokens
from hirl.methods import DINO, IBOT
from hirl.methods.base import Plan
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.ibot import Hidden, patch_distillation

SMALL: dict[str, Any] = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_args": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "dim": 64,
    "hidden": 48,
    "prototypes": 40,
    "local_crops": 3,
    "frozen_epochs": 0.25,
    "teacher_temperature": 0.05,
    "teacher_temperature_epochs": 2,
    "teacher_momentum": 0.9,
    "warmup_epochs": 0.5,
    "lr": 0.03,
}


@pytest.fixture
def method(plan: Plan, run: ModuleType) -> IBOT:
    """With a teacher that differs from the student, centres and a mask token that are not 0."""
    built: IBOT = run.built("IBOT", SMALL, plan)
    run.train(built, [run.random_views(built, plan, seed) for seed in range(3)])
    with torch.no_grad():
        built.mask_token.normal_()
        built.patch_centre.normal_(std=0.1)
    return built


def random_masks(method: IBOT, plan: Plan, seed: int = 0) -> list[Tensor | None]:
    """As the views ask for them: on about half of the global crops."""
    samples = torch.arange(plan.batch_size).numpy()
    return [
        None if view.mask is None else view.mask.draw(view.size, seed, 0, samples, number)
        for number, view in enumerate(method.views(plan.image_size))
    ]


def hidden_of(masks: list[Tensor | None]) -> Tensor:
    return torch.cat([mask for mask in masks if mask is not None])


# The views


def test_published_settings() -> None:
    method = IBOT()
    method.plan = Plan(epochs=400, steps_per_epoch=1251, batch_size=1024, image_size=224)
    assert method.arguments == DINO().arguments | {
        "prototypes": 8192,
        "shared_head": True,
        "separate_patch_head": False,
    }
    assert method.peak_lr == pytest.approx(3e-3)
    views = method.views(224)
    assert [view.size for view in views] == [224] * 2 + [96] * 10
    assert (views[0].scale, views[2].scale) == ((0.32, 1.0), (0.05, 0.32))
    assert [view.mask is not None for view in views] == [True] * 2 + [False] * 10
    mask = views[1].mask
    assert isinstance(mask, BlockMask)
    assert (mask.patch, mask.probability, mask.ratio, mask.spread) == (16, 0.5, 0.3, 0.2)


def test_masks_have_a_value_for_each_patch_of_the_backbone() -> None:
    mask = IBOT(**SMALL).views(32)[0].mask
    assert mask is not None
    assert mask.patch == 8


# The loss


def test_patch_loss_and_gradient_against_slow_ones(generator: torch.Generator) -> None:
    hidden = torch.rand(5, 3, 4, generator=generator) < 0.4
    hidden[2] = False  # nothing hidden: counts as 0, and as a crop
    student = (3 * torch.randn(5, 12, 7, generator=generator)).requires_grad_()
    teacher, centre = torch.randn(5, 12, 7, generator=generator), torch.randn(7, generator=generator)
    slow = torch.zeros(())
    for crop in range(5):
        terms = []
        for place in hidden[crop].flatten().nonzero().flatten().tolist():
            target = ((teacher[crop, place] - centre) / 0.04).softmax(0)
            terms.append(-(target * (student[crop, place] / 0.1).log_softmax(0)).sum())
        slow = slow + (torch.stack(terms).mean() if terms else 0.0) / 5
    flat = hidden.flatten(1)
    loss = patch_distillation(
        student[flat],
        teacher[flat],
        Hidden.of(hidden, hidden),
        centre,
        student_temperature=0.1,
        teacher_temperature=0.04,
    )
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(torch.autograd.grad(loss, student), torch.autograd.grad(slow, student))
    theirs = IBOTPatchLoss(7, teacher_temp=0.04)
    theirs.center.value.copy_(centre)
    torch.testing.assert_close(loss, theirs(teacher[flat], student[flat], hidden))


def test_a_steps_losses_against_slow_ones(method: IBOT, plan: Plan, run: ModuleType) -> None:
    """The student gets masked global and unmasked local crops, the teacher unmasked global ones; a centre per loss."""
    views, masks = run.random_views(method, plan), random_masks(method, plan)
    views[1] = views[1].flip(0)  # of other images, so that it matters which view learns from which
    hidden = hidden_of(masks)
    assert 0 < int(hidden.any((1, 2)).sum()) < len(hidden)
    method.eval()
    with torch.no_grad():
        output = method(views, masks, 60)
        masked = method.student.backbone.patch_embed(torch.cat(views[:2]))  # type: ignore[operator]
        masked[hidden] = method.mask_token
        vit: Any = method.student.backbone
        features = vit.norm(vit.blocks(vit._pos_embed(masked)))
        student = [*method.student.head(features[:, 0])[1].chunk(2)]
        student += [method.student.head(vit(view))[1] for view in views[2:]]
        pooled, patches = tokens(method.teacher.backbone, torch.cat(views[:2]))
        teacher = method.teacher.head(pooled)[1].chunk(2)
        by_class = DINOLoss(method.prototypes)
        by_class.center.copy_(method.centre)
        by_patch = IBOTPatchLoss(method.prototypes)
        by_patch.center.value.copy_(method.patch_centre)
        taught = method.teacher.head(patches[hidden.flatten(1)])[1]
        learned = method.student.head(features[:, 1:][hidden.flatten(1)])[1]
        temperature = method.temperature(60)
        class_loss = by_class(list(teacher), student, teacher_temp=temperature)
        patch_loss = by_patch(taught, learned, hidden, teacher_temp=temperature)
    torch.testing.assert_close(output.logs["class_loss"], class_loss)
    torch.testing.assert_close(output.logs["patch_loss"], patch_loss)
    torch.testing.assert_close(output.loss, class_loss + patch_loss)
    # z⁰ is the student's of the masked first view, its target the teacher's of the unmasked second.
    torch.testing.assert_close(output.z0, method.student.head.mlp(features[: plan.batch_size, 0]))
    torch.testing.assert_close(output.target_z0, method.embed(views[1]))


def test_loss_is_the_mean_over_images(method: IBOT, plan: Plan, run: ModuleType) -> None:
    """So that two processes with half of a batch each come to the loss of one, masks and all."""
    views, masks = run.random_views(method, plan), random_masks(method, plan)
    method.eval()
    with torch.no_grad():
        halves = [
            method([view.chunk(2)[half] for view in views], [m if m is None else m.chunk(2)[half] for m in masks], 0)
            for half in range(2)
        ]
        together = method(views, masks, 0)
    torch.testing.assert_close((halves[0].loss + halves[1].loss) / 2, together.loss)


def test_hidden_patches_are_learned(plan: Plan, run: ModuleType) -> None:
    """By way of the total loss: with both losses the patches' falls further than with the crops' alone."""
    ends = []
    for learned in ("class_loss", "both"):
        method: IBOT = run.built("IBOT", SMALL, plan)
        views, masks = run.random_views(method, plan), random_masks(method, plan)
        optimiser = torch.optim.AdamW(method.student.parameters(), lr=3e-3)
        for step in range(16):
            output = method(views, masks if learned == "both" or step == 15 else [None] * len(views), step)
            output.loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        ends.append(float(output.logs["patch_loss"]))
    assert ends[1] < 0.9 * ends[0]


def test_hidden_patches_are_those_of_the_mask(generator: torch.Generator) -> None:
    mask = torch.rand(5, 3, 4, generator=generator) < 0.4
    mask[2] = False
    patches = torch.randn(5, 12, 7, generator=generator)
    hidden = Hidden.of(mask, mask)
    assert torch.equal(patches[hidden.crop, hidden.patch], patches[mask.flatten(1)])
    assert torch.equal(hidden.hidden_per_crop, mask.sum((1, 2), keepdim=True).expand_as(mask)[mask])
    none = Hidden.of(torch.zeros_like(mask), torch.zeros_like(mask))
    assert patches[none.crop, none.patch].shape == (0, 7)


class Waits(TorchDispatchMode):
    """Notes the operations that a GPU would make the CPU wait for, with the tensor they read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        places = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        by_mask = any(place is not None and place.dtype == torch.bool for place in places)
        if by_mask or name in ("nonzero", "masked_select", "_local_scalar_dense"):
            self.read.append((name, args[0]))
        return func(*args, **(kwargs or {}))


def test_a_step_does_not_wait_for_the_device(
    method: IBOT, plan: Plan, run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one look at what is hidden is at the masks on the CPU, which those on the device carry along."""
    views, masks = run.random_views(method, plan), random_masks(method, plan)
    monkeypatch.setattr("hirl.data.views.masks.upload", lambda mask, _: torch.zeros_like(mask))  # to tell them apart
    uploaded = [mask if mask is None else uploaded_mask(mask, torch.device("cpu")) for mask in masks]
    with Waits() as waits:
        method(views, uploaded, 0).loss.backward()
    ((name, looked_at),) = waits.read
    assert name == "nonzero"
    assert torch.equal(looked_at, hidden_of(masks).flatten(1))


# The mask token


def test_mask_token_stands_for_hidden_patches_alone(method: IBOT, plan: Plan, run: ModuleType) -> None:
    views, masks = run.random_views(method, plan), random_masks(method, plan)
    hidden = hidden_of(masks)
    method.eval()
    changed = [view.clone() for view in views]
    pixels = hidden.repeat_interleave(8, 1).repeat_interleave(8, 2).chunk(2)
    for view, where in zip(changed, pixels, strict=False):
        view.add_(where.unsqueeze(1))  # what is hidden from the student changes
    with torch.no_grad():
        places = Hidden.of(hidden, hidden)
        before, after = (method.student(crops, places, method.mask_token) for crops in (views, changed))
        other = method.student(views, places, method.mask_token.flip(1))
    torch.testing.assert_close(after, before)
    images = 2 * plan.batch_size
    touched = (other[0] - before[0]).abs().amax(1) > 1e-6
    assert torch.equal(touched[:images], hidden.any(2).any(1))
    assert not bool(touched[images:].any())  # local crops are never masked


def test_mask_token_starts_at_0_trains_decays_and_is_no_part_of_the_encoder(plan: Plan, run: ModuleType) -> None:
    method: IBOT = run.built("IBOT", SMALL, plan)
    assert method.mask_token.shape == (1, 32)
    assert float(method.mask_token.detach().abs().max()) == 0
    decayed, _ = method.param_groups(method)
    assert any(weight is method.mask_token for weight in decayed["params"])
    assert not any("mask" in key for key in method.encoder.state_dict())
    views = run.random_views(method, plan)
    for masks in ([None] * len(views), random_masks(method, plan)):
        method.zero_grad()
        method(views, masks, 0).loss.backward()
        assert method.mask_token.grad is not None  # also when nothing is hidden, for DDP waits for it
        assert (float(method.mask_token.grad.norm()) > 0) == (masks[0] is not None)
    gradient = method.mask_token.grad
    assert gradient is not None
    gradient.mul_(1e6)
    method.clip_gradients(method.parameters())
    assert float(gradient.norm()) == pytest.approx(0.3, rel=1e-4)


# The centres


def test_centres_follow_crops_and_all_patches(plan: Plan, run: ModuleType) -> None:
    method: IBOT = run.built("IBOT", SMALL, plan)
    optimiser = method.optimiser(method.param_groups(method))
    views, masks = run.random_views(method, plan), random_masks(method, plan)
    expected = [torch.zeros(method.prototypes)] * 2
    for step in range(2):
        with torch.no_grad():
            pooled, patches = tokens(method.teacher.backbone, torch.cat(views[:2]))
            means = [method.teacher.head(part)[1].mean(0) for part in (pooled, patches.flatten(0, 1))]
        for half in range(2):  # a batch in two parts moves them once
            part = [view.chunk(2)[half] for view in views]
            method(part, [mask if mask is None else mask.chunk(2)[half] for mask in masks], step).loss.backward()
        method.before_update(step)
        method.clip_gradients(method.parameters())
        optimiser.step()
        method.after_step(step)
        expected = [0.9 * centre + 0.1 * mean for centre, mean in zip(expected, means, strict=True)]
        torch.testing.assert_close([method.centre, method.patch_centre], expected)
    assert {"centre", "patch_centre"} <= method.state_dict().keys()


# The networks


def masked_forward(method: IBOT, plan: Plan, generator: torch.Generator) -> None:
    """A forward and a backward pass with some hidden patches."""
    views = [torch.randn(plan.batch_size, 3, view.size, view.size, generator=generator) for view in method.views(32)]
    side = 32 // 8
    masks = [torch.rand(plan.batch_size, side, side, generator=generator) < 0.3 for _ in range(2)]
    method([*views], [*masks, *[None] * (len(views) - 2)], 0).loss.backward()


def test_patches_may_have_a_last_layer_of_their_own(plan: Plan, run: ModuleType, generator: torch.Generator) -> None:
    """The option of the original: the layers before it are shared."""
    method = run.built("IBOT", SMALL | {"shared_head": False}, plan)
    student, teacher = method.student, method.teacher
    assert student.own_patch_head is None
    assert student.patch_mlp is student.head.mlp
    assert student.patch_layer is not student.head.last_layer
    assert student.patch_layer.weight.shape == (method.prototypes, method.dim)
    assert torch.equal(student.patch_layer.weight, teacher.patch_layer.weight)
    layers = [student.head.last_layer, student.patch_layer]
    # Hidden patches teach the patches' layer alone, crops the crops' layer alone.
    tokens_of_patches = torch.randn(6, 32, generator=generator)
    expected = student.patch_layer(torch.nn.functional.normalize(student.head.mlp(tokens_of_patches), dim=1))
    assert not torch.allclose(expected, student.head(tokens_of_patches)[1])
    masked_forward(method, plan, generator)
    assert all(layer.weight.grad is not None for layer in layers)
    method.before_update(0)
    assert all(layer.weight.grad is None for layer in layers)
    shared = run.built("IBOT", SMALL, plan)
    more = method.prototypes * method.dim
    assert sum(w.numel() for w in student.parameters()) == sum(w.numel() for w in shared.student.parameters()) + more


def test_patches_may_have_a_head_of_their_own(plan: Plan, run: ModuleType, generator: torch.Generator) -> None:
    method = run.built("IBOT", SMALL | {"separate_patch_head": True, "head_batch_norm": True}, plan)
    student, teacher = method.student, method.teacher
    assert student.patch_mlp is not student.head.mlp
    assert student.patch_layer is not student.head.last_layer
    for name, weight in student.own_patch_head.state_dict().items():
        assert torch.equal(weight, teacher.own_patch_head.state_dict()[name])
    masked_forward(method, plan, generator)
    heads = (student.head, student.own_patch_head)
    assert all(weight.grad is not None for head in heads for weight in head.parameters())
    method.before_update(0)
    assert all(head.last_layer.weight.grad is None for head in heads)


def test_crops_and_patches_share_one_head(method: IBOT) -> None:
    names = [name for name, _ in method.student.head.named_parameters()]
    assert [name for name in names if name.startswith("last_layer")] == ["last_layer.weight"]
    assert method.student.head.last_layer.weight.shape == (method.prototypes, method.dim)


def test_crops_of_equal_size_share_a_batch_and_the_teacher_sees_global_ones(
    method: IBOT, plan: Plan, run: ModuleType
) -> None:
    shapes: dict[str, list[tuple[int, ...]]] = {"student": [], "teacher": []}
    for name, network in (("student", method.student), ("teacher", method.teacher)):
        network.backbone.get_submodule("patch_embed").register_forward_pre_hook(
            lambda _, inputs, name=name: shapes[name].append(tuple(inputs[0].shape))
        )
    views = run.random_views(method, plan)
    method(views, random_masks(method, plan), 0)
    assert shapes == {"student": [(32, 3, 32, 32), (48, 3, 16, 16)], "teacher": [(32, 3, 32, 32)]}
    assert method.teacher.drop_paths == ()
    assert len(method.student.drop_paths) == 2


def test_global_and_local_crops_drop_their_own_paths(plan: Plan, run: ModuleType) -> None:
    method: IBOT = run.built("IBOT", SMALL | {"drop_path": 0.5}, plan)
    drawn: list[int] = []
    path = method.student.drop_paths[0]
    path.register_forward_pre_hook(lambda module, _: drawn.append(len(module.factors)))
    views = run.random_views(method, plan)
    method(views, random_masks(method, plan), 0)
    assert drawn == [2 * plan.batch_size, 3 * plan.batch_size]


def test_teacher_starts_as_a_copy_of_the_student(plan: Plan, run: ModuleType) -> None:
    method: IBOT = run.built("IBOT", SMALL, plan)
    student, teacher = method.student.state_dict(), method.teacher.state_dict()
    assert student.keys() == teacher.keys()
    assert all(torch.equal(tensor, teacher[key]) for key, tensor in student.items())


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "resnet18", "backbone_args": None}, "'resnet18' has batch norm, but IBOT takes networks without"),
        (
            {"backbone": "convnext_atto", "backbone_args": None},
            "ConvNeXt has no patches to hide: choose a plain vision",
        ),
        ({"backbone": "eva02_tiny_patch14_224", "backbone_args": None}, "Eva has no patches to hide"),
        ({"local_size": 12}, "views of 12 pixels do not consist of whole patches of 8 pixels"),
        ({"teacher_temperature": 0.0}, "teacher_temperature is 0.0, but must be above 0"),
        ({"centre_momentum": 1.1}, "centre_momentum is 1.1, but must be between 0 and 1"),
    ],
)
def test_what_cannot_be_built(changes: dict[str, Any], message: str, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=message):
        run.built("IBOT", SMALL | changes, plan)


def test_z0_and_embed_come_from_the_stated_layers(method: IBOT, plan: Plan, run: ModuleType) -> None:
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # so that copies differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, [None] * len(views), 3)
        for z0, network, view in ((output.z0, method.student, views[0]), (output.target_z0, method.teacher, views[1])):
            torch.testing.assert_close(z0, network.head.mlp(network.backbone(view)))
        torch.testing.assert_close(method.embed(views[1]), output.target_z0)
        assert method.encoder is method.teacher.backbone


def test_parts_of_a_batch_make_one_step(plan: Plan, run: ModuleType) -> None:
    run.check_parts_make_one_step("IBOT", SMALL | {"drop_path": 0.0}, plan)


def test_facts() -> None:
    rates = tuple(n * 10.0**k for k in range(-4, 1) for n in range(1, 10))
    linear = LinearTraining(lr=0.001, rates=rates, batch_size=1024, epochs=100, mean_patch=True)
    assert IBOT.facts == Facts(linear=linear, interpolation="bicubic", gradient_views=4)
