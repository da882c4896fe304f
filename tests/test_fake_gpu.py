"""The pretended GPU: what it lets pass and what it refuses, by itself and with faults planted into a training step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fake_gpu import GPU, Captured, Mixed, Read, fake_gpu
from torch import Tensor, nn

from sslbook.arguments import require_finite
from sslbook.datasets import Dataset
from sslbook.training import objectives
from sslbook.training.networks import siamese
from sslbook.training.networks.siamese import Networks
from sslbook.training.runs import distributed, steps
from sslbook.training.runs.settings import Settings
from sslbook.training.runs.trainer import Trainer
from sslbook.training.views import augment

Plant = Callable[[pytest.MonkeyPatch], None]


def test_the_host_computes_and_the_device_has_shapes() -> None:
    with fake_gpu() as gpu:
        host, there = torch.ones(3, 4), torch.zeros(3, 4, device="cuda")
        assert host.sum().item() == 12
        for moved in (host.to("cuda"), host.to(GPU), host.cuda(), host.to(there), torch.tensor([1.0], device="cuda")):
            assert moved.device == GPU
            assert moved.is_cuda
            assert (there + moved).shape == (3, 4)
        assert len(gpu.waits) == 5
        assert nn.Linear(4, 2).to("cuda")(there).device == GPU
        assert (there * host.sum()).device == GPU  # a number may come from the host
        assert torch.device("cuda").type == "cuda"
        host.pin_memory().to("cuda", non_blocking=True)
        assert len(gpu.waits) == 7  # the linear layer's weight and bias
    assert host.device.type == "cpu"


def test_gradients_come_to_lie_on_the_device() -> None:
    with fake_gpu():
        layer, x = nn.Linear(4, 4, device="cuda"), torch.zeros(5, 4, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
            assert y.dtype == torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert layer(x).dtype == torch.float32
        y.float().square().sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.device == GPU
        assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("ask", "refused"),
    [
        (lambda x: x + torch.ones(3), Mixed),
        (lambda x: torch.stack([x, torch.ones(3)]), Mixed),
        (lambda x: x[torch.tensor([0, 1])], Mixed),  # PyTorch would copy the index, and wait
        (lambda x: torch.ones(3)[x.long()], Mixed),
        (lambda x: torch.where(x > 0, x, torch.ones(3)), Mixed),
        (lambda x: x.sum().item(), Read),
        (lambda x: float(x.sum()), Read),
        (lambda x: int(x.long().max()), Read),
        (lambda x: 1 if x.any() else 0, Read),
        (lambda x: x.tolist(), Read),
        (lambda x: x.cpu(), Read),
        (lambda x: x.to("cpu"), Read),
        (lambda x: torch.empty(3).copy_(x), Read),
        (lambda x: x.nonzero(), Read),
        (lambda x: x[x > 0], Read),
        (lambda x: x.unique(), Read),
        (lambda x: torch.equal(x, x), Read),
        (lambda x: torch.linalg.eigh(x[:, None] * x), Read),
        (lambda x: torch.linalg.solve(x[:, None] * x, x), Read),
        (lambda x: torch.cuda.synchronize(), Read),
        (lambda x: x.numpy(), (TypeError, Read)),
        (lambda x: torch.Generator("cuda"), RuntimeError),
        (lambda x: x.to("cuda:1"), RuntimeError),
    ],
)
def test_it_refuses(ask: Callable[[Tensor], object], refused: type[Exception]) -> None:
    with fake_gpu(), pytest.raises(refused):
        ask(torch.zeros(3, device="cuda"))


def test_reading_is_for_those_who_may() -> None:
    """By name, with all that they call; what they find is 0, or what the test says."""
    with fake_gpu(["arguments.require_finite"]) as gpu:
        there = torch.zeros(3, 2, device="cuda")
        require_finite(train=there)
        assert gpu.reads == ["arguments.require_finite"]
        with pytest.raises(Read, match="in no function of ours"):
            there.sum().item()
    with fake_gpu(["training.runs.state.check"]), pytest.raises(Read, match=r"in arguments\.require_finite"):
        require_finite(train=there)
    found = {"arguments.require_finite": True}
    with fake_gpu(found, found), pytest.raises(ValueError, match="got 1 of 3 rows"):
        require_finite(train=there)


@pytest.mark.parametrize("fault", [lambda x: x + torch.ones(3).to("cuda"), lambda x: x.sum().item()])
def test_a_graph_holds_no_copy_and_no_reading(fault: Callable[[Tensor], object]) -> None:
    with fake_gpu():
        x = torch.zeros(3, device="cuda")
        with pytest.raises(Captured), torch.cuda.graph(torch.cuda.CUDAGraph()):
            fault(x)
        with pytest.raises(RuntimeError, match="empty"):
            torch.cuda.CUDAGraph().replay()


# --- faults in a step ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernels are to be chosen before a capture."""
    monkeypatch.setattr(steps, "WARM", 1)


def step(folder: Path, capture: str) -> None:
    """Two steps of BYOL with a moving target."""
    pixels = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    data = Dataset(pixels, torch.zeros(64, dtype=torch.int64), "nothing", 10)
    networks = Networks(width=4, projector_hidden=8, projector_out=8, predictor=2, predictor_hidden=8, target="ema")
    settings = Settings(objective="byol", networks=networks, batch=16, capture=capture, optimizer="lars")
    with fake_gpu() as gpu:
        run = Trainer(settings, folder, (data, data), GPU, quiet=True)
        gpu.waits.clear()
        run.advance()
        run.advance()
        if gpu.waits:
            raise AssertionError(f"waits in {gpu.waits}")


def after(module: object, name: str, fault: Callable[[Tensor], object]) -> Plant:
    """``fault`` of what a function gives, before it is given on."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)

        def faulty(*args: object, **kwargs: object) -> object:
            found = real(*args, **kwargs)
            changed = fault(found)  # type: ignore[arg-type]
            return changed if isinstance(changed, Tensor) else found

        patch.setattr(module, name, faulty)

    return plant


def instead(module: object, name: str, function: object) -> Plant:
    return lambda patch: patch.setattr(module, name, function)


def host_scaling(pipeline: augment.Pipeline, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.ones(3, 1, 1), torch.zeros(3, 1, 1)


def target_on_the_host(patch: pytest.MonkeyPatch) -> None:
    real = siamese.Siamese.to

    def to(self: siamese.Siamese, *args: object, **kwargs: object) -> siamese.Siamese:
        kept, self.target_projector = self.target_projector, None
        real(self, *args, **kwargs)  # type: ignore[call-overload]
        self.target_projector = kept
        return self

    patch.setattr(siamese.Siamese, "to", to)


FAULTS: dict[str, tuple[Plant, type[Exception]]] = {
    "a loss that is logged": (after(objectives.F, "cosine_similarity", lambda loss: loss.mean().item()), Read),
    "a weight that is looked at": (after(torch.linalg, "vector_norm", lambda size: 1 if size > 0 else 0), Read),
    "an assertion": (after(steps, "apply", lambda view: bool(view.isfinite().all())), Read),
    "a mask as an index": (after(augment, "_view", lambda view: view[view.flatten(1).sum(1) > 0]), Read),
    "a table on the host": (instead(augment, "_scaling", host_scaling), Mixed),
    "a table from the host": (
        after(augment, "_view", lambda view: view * torch.ones(3, 1, 1).to(view.device)),
        Captured,
    ),
    "a target on the host": (target_on_the_host, Mixed),
    "numbers of images on the host": (instead(steps, "to_device", lambda part, device: part), Mixed),
    "memory that is not pinned": (instead(steps, "to_device", lambda part, device: part.to(device)), AssertionError),
    "waiting for the device": (after(distributed, "own_rows", lambda rows: torch.cuda.synchronize()), Read),
}


@pytest.mark.parametrize("capture", ["none", "graph"])
def test_a_step_without_a_fault(capture: str, tmp_path: Path) -> None:
    step(tmp_path, capture)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_step_is_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, refused = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(refused):
        step(tmp_path, "graph")


def test_without_a_graph_a_table_from_the_host_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["a table from the host"][0](monkeypatch)
    with pytest.raises(AssertionError, match="waits in"):
        step(tmp_path, "none")
