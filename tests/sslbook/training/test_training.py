"""ResNet-18, heads and towers: against the definition written out with functions, and what the ablations ask of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.networks.batchnorm import BatchNorm, batch_normalize
from sslbook.networks.siamese import Head, Networks, ResNet18, Siamese, build, initialize

SMALL = {"width": 4, "projector_hidden": 16, "projector_out": 8, "predictor_hidden": 16}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 3, size, size, generator=generator(seed), dtype=dtype)


def reference(state: dict[str, Tensor], x: Tensor, stem: str, training: bool) -> Tensor:
    """ResNet-18 of He et al., Table 1, as functions of a state dict with torchvision's names."""

    def bn(name: str, y: Tensor) -> Tensor:
        statistics = (state[f"{name}.running_mean"], state[f"{name}.running_var"])
        return F.batch_norm(y, *statistics, state[f"{name}.weight"], state[f"{name}.bias"], training, 0.1, 1e-5)

    stride, padding = (1, 1) if stem == "cifar" else (2, 3)
    x = bn("bn1", F.conv2d(x, state["conv1.weight"], stride=stride, padding=padding)).relu()
    if stem == "stl":
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = bn(f"{name}.bn1", F.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)).relu()
            y = bn(f"{name}.bn2", F.conv2d(y, state[f"{name}.conv2.weight"], padding=1))
            if stage > 1 and block == 0:
                x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
                x = bn(f"{name}.downsample.1", x)
            x = (x + y).relu()
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def encoder(stem: str, width: int = 4) -> ResNet18:
    """One whose BatchNorms have been through some training: none of their numbers is the initial one."""
    net = ResNet18(stem, width).double()
    initialize(net, generator(1))
    for name, tensor in net.state_dict().items():
        if ("bn" in name or "downsample.1" in name) and tensor.is_floating_point():
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator(len(name)), dtype=torch.float64))
    return net


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("stem", "size"), [("cifar", 16), ("stl", 48)])
def test_the_encoder_is_the_reference_definition(stem: str, size: int, training: bool) -> None:
    net, x = encoder(stem).train(training), images(5, size)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    leaves = {name: state[name].requires_grad_() for name, _ in net.named_parameters()}
    weight = torch.randn(5, 32, generator=generator(3), dtype=torch.float64)

    wanted = reference(state, x, stem, training)
    expected = torch.autograd.grad((wanted * weight).sum(), list(leaves.values()))
    got = net.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    found = torch.autograd.grad((got * weight).sum(), list(net.parameters()))

    assert got.shape == (5, 32)
    assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    for name, buffer in net.named_buffers():
        assert torch.allclose(buffer, state[name], rtol=1e-10) or name.endswith("num_batches_tracked")


@pytest.mark.parametrize("hidden", [5, None])
@pytest.mark.parametrize("norm", [("normal", "normal"), None])
def test_a_head_is_written_out(hidden: int | None, norm: tuple[str, str] | None) -> None:
    """BatchNorm stands before the last layer, behind ReLU's place if there are two."""
    head = Head(6, hidden, 3, norm).double()
    y = torch.randn(7, 6, generator=generator(), dtype=torch.float64)
    x, weights = y.clone(), list(head.parameters())
    if hidden is not None:
        y = y @ weights[0].T + weights[1]
    if norm is not None:
        y = (y - y.mean(0)) / (y.var(0, correction=0) + 1e-5).sqrt()
    y = (y if hidden is None else y.relu()) @ weights[-2].T + weights[-1]
    assert torch.allclose(head(x), y, rtol=1e-12)


def test_table_4s_layer_divides_by_one_less() -> None:
    norm = build(Networks(**SMALL, projector_norm=("detach", "normal"), unbiased=True), 0).projector.norm
    assert isinstance(norm, BatchNorm)
    assert (norm.mean, norm.std) == ("detach", "normal")
    assert torch.allclose(norm(torch.randn(5, 16, generator=generator())).std(0), torch.ones(16), rtol=1e-3)
    assert build(Networks(**SMALL, projector_norm=None), 0).projector.norm is None


@pytest.mark.parametrize("norm", [("normal", "normal"), ("detach", "normal")])
def test_running_statistics_are_of_views_alone_and_go_with_new_first_weights(norm: tuple[str, str]) -> None:
    """Neither PyTorch's BatchNorm nor ours counts clean images; they pass normalised by their own batch all the same."""
    with_clean, without = (build(Networks(**SMALL, projector_norm=norm), 0) for _ in range(2))
    views, fresh = [images(6, 8, seed).float() for seed in (1, 2, 3)], [b.clone() for b in without.buffers()]
    out = with_clean(*views)
    without(*views[:2])
    assert all(map(torch.equal, with_clean.buffers(), without.buffers()))
    assert not any(map(torch.equal, with_clean.buffers(), fresh))
    assert out.w1.equal(without.projector(without.encoder(views[2])))
    initialize(without, generator())
    assert all(map(torch.equal, without.buffers(), fresh))


def byol(**changes: object) -> Siamese:
    return build(Networks(**{**SMALL, "predictor": 2, "target": "ema", **changes}), 0)


def test_each_output_is_that_of_its_view_and_tower() -> None:
    """Each view normalised by itself; in training mode no output depends on what BatchNorm has counted."""
    siamese, again = (byol(target_init="own").double() for _ in range(2))
    views, clean = (images(6, 8, 1), images(6, 8, 2) * 3), images(6, 8, 3)
    out = siamese(*views, clean)
    for view, z, p, t in zip(views, (out.z1, out.z2), (out.p1, out.p2), (out.t1, out.t2), strict=True):
        assert z.equal(again.projector(again.encoder(view)))
        assert p.equal(again.predictor(z))
        assert t.equal(again.target_projector(again.target_encoder(view)))
        assert not torch.allclose(t, z, rtol=1e-2), "the target's own weights"
        assert not t.requires_grad
    assert out.w1 is out.w2
    assert out.w1.equal(again.projector(again.encoder(clean)))
    assert not out.w1.requires_grad
    assert siamese(*views).w1 is siamese(*views).w2 is None
    assert siamese(*views, clean, views[0]).w2.equal(out.z1)
    simple = build(Networks(**SMALL), 0).double()(*views)
    assert (simple.p1, simple.t2) == (simple.z1, simple.z2)
    assert simple.t1.requires_grad


@pytest.mark.parametrize("norm", [("normal", "normal"), ("detach", "normal")])
def test_half_precision_ends_in_whole_embeddings(norm: tuple[str, str] | None) -> None:
    siamese, views = byol(projector_norm=norm, predictor_norm=norm), [images(16, 16, seed).float() for seed in (1, 2)]
    whole = siamese(*views)
    with torch.autocast("cpu", torch.bfloat16):
        half = siamese(*views)
    for a, b in zip(half[:6], whole[:6], strict=True):
        assert a.dtype == torch.float32
        assert F.cosine_similarity(a, b).mean().item() > 0.99
    F.cosine_similarity(half.p1, half.t2).mean().backward()
    assert all(w.grad is None or w.grad.isfinite().all() for w in siamese.learning())


def test_first_weights_are_a_function_of_the_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    one, own, two, other = byol(), byol(target_init="own"), build(Networks(**SMALL), 0), build(Networks(**SMALL), 1)
    assert torch.rand(2).equal(expected), "the global generator stays as it was"
    for a, b in zip([*one.encoder.parameters(), *one.projector.parameters()], two.parameters(), strict=True):
        assert a.equal(b), "what stands above the encoder does not change its weights"
    assert not two.encoder.conv1.weight.equal(other.encoder.conv1.weight)
    for siamese, equal in ((one, True), (own, False)):  # a target is a copy, or on its own
        assert siamese.encoder.conv1.weight.equal(siamese.target_encoder.conv1.weight) is equal
        assert siamese.projector.linears[0].weight.equal(siamese.target_projector.linears[0].weight) is equal


def test_the_predictor_starts_anew() -> None:
    siamese = byol()
    first = [linear.weight.clone() for linear in siamese.predictor.linears]
    siamese.reset_predictor(generator(4))
    for old, linear in zip(first, siamese.predictor.linears, strict=True):
        bound = math.sqrt(6 / sum(linear.weight.shape))
        assert not linear.weight.equal(old)
        assert 0.9 * bound < float(linear.weight.detach().abs().max()) <= bound
        assert float(linear.bias.detach().abs().max()) == 0
    narrow = byol(predictor=1, predictor_range=(0.0, 0.02)).predictor.linears[0]
    assert float(narrow.weight.detach().min()) >= 0
    assert 0.015 < float(narrow.weight.detach().max()) <= 0.02


def test_a_symmetric_predictor() -> None:
    siamese, one = byol(), byol(predictor=1)
    first, last = (linear.weight.clone() for linear in siamese.predictor.linears)
    for each in (siamese, one):
        each.symmetrize_predictor()
    now = [linear.weight for linear in siamese.predictor.linears]
    assert now[0].equal((first + last.T) / 2)
    assert now[1].equal(now[0].T)
    assert one.predictor.linears[0].weight.equal(one.predictor.linears[0].weight.T)


def test_batchnorm_after_the_projector_centres_what_both_towers_give() -> None:
    without, siamese = byol(), byol(projector_out_norm=("normal", "normal"))
    views = [images(16, 16, seed).float() for seed in (1, 2)]
    outputs, plain = siamese(*views), without(*views)
    for ours, theirs in ((outputs.z1, plain.z1), (outputs.t2, plain.t2)):
        torch.testing.assert_close(ours, batch_normalize(theirs))
        assert not ours.allclose(theirs)


def test_weight_noise() -> None:
    siamese = byol()
    before = {name: weights.clone() for name, weights in siamese.named_parameters()}
    siamese.blend_noise(0.25, generator())
    for name, weights in siamese.named_parameters():
        if weights.ndim < 2 or name.startswith(("predictor", "target")):
            assert weights.equal(before[name]), name
        else:
            noise = (weights - 0.75 * before[name]) / 0.25
            bound = math.sqrt(6 / (weights[0].numel() + weights.numel() // weights.shape[1]))
            assert 0.7 * bound < float(noise.detach().abs().max()) < bound * (1 + 1e-4)
