"""FGM and AWP against torch by hand.

python -m pytest tests/test_adversarial.py
"""

import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toy import PER_EPOCH, ROWS, Crash, Y, assert_same, stopping, toy_batches, toy_recipe, weights

from pipeline import hardware, training
from pipeline.adversarial import perturbed, shifted
from pipeline.errors import Stopped
from pipeline.history import read_history
from pipeline.training import Task, train

WORDS = torch.randint(0, 20, (ROWS, 3), generator=torch.Generator().manual_seed(3))
EPSILON = 0.7
GAMMA = 0.1
BOTH = pytest.mark.parametrize(("method", "size"), [(shifted, EPSILON), (perturbed, GAMMA)])


def worded(dropout: float = 0.0, seed: int = 0) -> nn.Module:
    """Words to a number, by an embedding that is not the first module with weights in it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Identity(), nn.Embedding(20, 4), nn.Flatten(), nn.Dropout(dropout),
                         nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 1))


def loss_of(model: nn.Module, rows: np.ndarray) -> torch.Tensor:
    """Mean squared error of a batch."""
    return ((model(WORDS[rows]).squeeze(-1) - Y[rows]) ** 2).mean()


def task(loss=loss_of) -> Task:
    """Words to numbers as a Task."""
    return Task(batches=toy_batches, loss=loss, tokens=len, texts=lambda rows: ["" for _ in rows],
                evaluate=lambda model: {"score": -sum(p.detach().abs().sum().item()
                                                      for p in model.parameters())},
                best_by="score")


def trained(folder: Path, model: nn.Module, loss=loss_of, **changes: object) -> training.State:
    """Trains as a stage would."""
    accelerator = hardware.start("cpu", "fp32", 0, False)
    torch.manual_seed(5)
    return train(model, task(loss), toy_recipe(**changes), accelerator, folder)


def test_shift_is_epsilon_along_the_gradient():
    """w + ε · g / ‖g‖ inside, its own bits outside; absent words and other weights stay."""
    model = worded()
    rows = np.arange(4)
    loss_of(model, rows).backward()
    own, gradient = weights(model), model[1].weight.grad.clone()
    with shifted(model, EPSILON):
        inside = weights(model)
    shift = inside["1.weight"] - own["1.weight"]
    torch.testing.assert_close(shift, EPSILON * gradient / gradient.norm(), rtol=1e-4, atol=1e-6)
    assert shift.norm().item() == pytest.approx(EPSILON, rel=1e-5)
    absent = sorted(set(range(20)) - set(WORDS[rows].flatten().tolist()))
    assert absent
    assert (shift[absent] == 0).all()
    assert all(torch.equal(inside[name], own[name]) for name in own if name != "1.weight")
    assert all(torch.equal(tensor, own[name]) for name, tensor in weights(model).items())


def test_perturbation_is_a_share_of_each_matrix():
    """w + γ · ‖w‖ · g / ‖g‖ for every matrix inside, its own bits outside; vectors stay."""
    model = worded()
    loss_of(model, np.arange(4)).backward()
    own = weights(model)
    with perturbed(model, GAMMA):
        inside = weights(model)
    for name, p in model.named_parameters():
        direction = p.grad / p.grad.norm() * own[name].norm() if p.ndim > 1 else 0 * p.grad
        torch.testing.assert_close(inside[name] - own[name], GAMMA * direction, rtol=1e-4,
                                   atol=1e-6)
        assert torch.equal(p, own[name])
    assert {p.ndim for p in model.parameters()} == {1, 2}


@BOTH
def test_loss_grows(method, size):
    """The shift is to where the loss is larger."""
    model = worded()
    rows = np.arange(8)
    before = loss_of(model, rows)
    before.backward()
    with method(model, size / 10):
        assert loss_of(model, rows) > before


@BOTH
def test_restored_after_an_error(method, size):
    """What happens inside does not leave shifted weights behind."""
    model = worded()
    loss_of(model, np.arange(4)).backward()
    own = weights(model)
    with pytest.raises(Crash), method(model, size):
        raise Crash
    assert all(torch.equal(tensor, own[name]) for name, tensor in weights(model).items())


@BOTH
@pytest.mark.parametrize("value", [None, 0.0, float("nan"), float("inf")])
def test_no_shift_without_a_finite_gradient(method, size, value):
    """Without a direction nothing is shifted, and nothing becomes NaN."""
    model = worded()
    if value is not None:
        model[1].weight.grad = torch.full_like(model[1].weight, value)
    own = model[1].weight.detach().clone()
    with method(model, size):
        assert torch.equal(model[1].weight, own)


def by_hand(key: str, dropout: float, steps: int) -> tuple[nn.Module, list[float], list[float]]:
    """The training by torch alone; FGM's two gradients are added up and clipped together."""
    model = worded(dropout)
    torch.manual_seed(5)
    shared = [p for p in model.parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW([
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}],
        foreach=False, fused=False)
    losses, norms, warmup = [], [], math.ceil(steps / 5)
    for step in range(steps):
        rows = toy_batches(step // PER_EPOCH)[step % PER_EPOCH]
        rate = 0.03 * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, rows)
        clean = torch.autograd.grad(loss, list(model.parameters()))
        own = [p.detach().clone() for p in shared]
        gradients = [g for p, g in zip(model.parameters(), clean, strict=True) if p.ndim > 1]
        with torch.no_grad():
            for p, g in zip(shared, gradients, strict=True):
                size = GAMMA * p.norm() if key == "awp" else EPSILON * (p is shared[0])
                p += size * g / g.norm()
        shifted_loss = loss_of(model, rows)
        adversarial = torch.autograd.grad(shifted_loss, list(model.parameters()))
        with torch.no_grad():
            for p, value in zip(shared, own, strict=True):
                p.copy_(value)
        for p, one, other in zip(model.parameters(), clean, adversarial, strict=True):
            p.grad = other if key == "awp" else one + other
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        losses.append(loss.item())
    return model, losses, norms


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("key", "size"), [("fgm", EPSILON), ("awp", GAMMA)])
def test_loop_equals_a_hand_written_one(tmp_path, key, size, dropout):
    """FGM: the gradient at w plus that at the shifted w; AWP: the latter; each with its mask."""
    expected, losses, norms = by_hand(key, dropout, 9)
    model = worded(dropout)
    trained(tmp_path, model, max_steps=9, eval_every=9, **{key: size})
    lines = [line for line in read_history(tmp_path / "history.jsonl") if "loss" in line]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-4)
    assert [line["grad_norm"] for line in lines] == pytest.approx(norms, rel=1e-4)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    plain = worded(dropout)
    trained(tmp_path / "plain", plain, max_steps=9, eval_every=9)
    assert not torch.allclose(plain[1].weight, model[1].weight, atol=1e-3)


@pytest.fixture(scope="module", params=[{"fgm": EPSILON}, {"awp": GAMMA}], ids=["fgm", "awp"])
def method(request):
    """The key that is set."""
    return request.param


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, method):
    """Weights, state and history of an undisturbed training with dropout."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model = worded(0.3)
    state = trained(folder, model, **method)
    return weights(model), state, read_history(folder / "history.jsonl")


@pytest.mark.parametrize(("call", "how"), [(13, signal.SIGTERM), (14, signal.SIGINT), (21, None)])
def test_survives_a_stop(tmp_path, undisturbed, method, call, how, monkeypatch):
    """Two calls of the loss a step: a stop in the first or the second changes not a bit."""
    monkeypatch.setattr("toy.toy_loss", loss_of)
    with pytest.raises(Crash if how is None else Stopped):
        trained(tmp_path, worded(0.3), loss=stopping(call, how), **method)
    model = worded(0.3, seed=9)
    state = trained(tmp_path, model, **method)
    assert_same(tmp_path, model, state, undisturbed)
