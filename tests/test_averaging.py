"""The moving average of the weights against a recursion by hand, in the loop and across stops.

python -m pytest tests/test_averaging.py
"""

import signal

import pytest
import torch
from torch import nn
from toy import (
    Crash,
    assert_same,
    equal,
    scripted,
    stopping,
    timeless,
    toy_model,
    toy_task,
    toy_train,
    weights,
)

from pipeline import training
from pipeline.averaging import Average
from pipeline.errors import Stopped
from pipeline.history import read_history

DECAY, STEPS = 0.4, 12  # the warm-up of the decay ends at step 5, where (1 + t) / (10 + t) is 0.4


def test_by_hand():
    """One weight: 8 moved to 0, then to 4; the decays are 2/11 and min(0.2, 3/12)."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = Average(model, 0.2)
    nn.init.constant_(model.weight, 0.0)
    average.update(1)
    first = 2 / 11 * 8
    assert average.values["weight"].item() == pytest.approx(first)
    nn.init.constant_(model.weight, 4.0)
    average.update(2)
    assert average.values["weight"].item() == pytest.approx(0.2 * first + 0.8 * 4)
    assert model.weight.item() == 4.0


def test_in_place():
    """The model has the average inside and its own bits again outside, whatever happens inside."""
    model = toy_model()
    average = Average(model, 0.9)
    start = weights(model)
    for p in model.parameters():
        nn.init.normal_(p)
    own = weights(model)
    with pytest.raises(Crash), average.in_place():
        raise Crash
    assert equal(weights(model), own)
    with average.in_place():
        assert equal(weights(model), start)
    assert equal(weights(model), own)


def test_frozen_weights_are_left_alone():
    """What is not trained has no average."""
    model = toy_model()
    model[0].weight.requires_grad_(False)
    assert "0.weight" not in Average(model, 0.5).values
    assert "3.weight" in Average(model, 0.5).values


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> tuple[list[dict], list[dict]]:
    """The weights after every step of a training without average, and its history."""
    seen, folder = [], tmp_path_factory.mktemp("raw")

    def evaluate(model):
        seen.append(weights(model))
        return {"score": 0.0}

    toy_train(folder, toy_task(evaluate=evaluate), max_steps=STEPS, eval_every=1)
    return seen, read_history(folder / "history.jsonl")


def test_average_is_evaluated_and_kept(tmp_path, raw):
    """Evaluations see the recursion over the raw weights, the best one's average is kept.

    The losses are those of a training without average: it goes on from the raw weights.
    """
    own, history = raw
    seen, scores = [], iter([0.0, *[1.0 if step == 8 else 0.1 for step in range(1, STEPS + 1)]])

    def evaluate(model):
        seen.append(weights(model))
        return {"score": next(scores)}

    model, state = toy_train(tmp_path, toy_task(evaluate=evaluate), max_steps=STEPS, eval_every=1,
                             ema=DECAY)
    expected = {name: tensor.double() for name, tensor in own[0].items()}
    for step in range(STEPS + 1):
        if step:
            decay = min(DECAY, (1 + step) / (10 + step))
            expected = {name: decay * expected[name] + (1 - decay) * tensor.double()
                        for name, tensor in own[step].items()}
        for name, tensor in seen[step].items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert state.best_step == 8
    assert equal(weights(model), seen[8])
    assert not equal(weights(model), own[8])
    losses = [[line["loss"] for line in lines if "loss" in line]
              for lines in (history, read_history(tmp_path / "history.jsonl"))]
    assert losses[0] == losses[1]


def test_without_a_best_evaluation_the_average_is_kept(tmp_path, raw):
    """Scores that are no numbers choose nothing: the last average stays, not the raw weights."""
    seen = []

    def evaluate(model):
        seen.append(weights(model))
        return {"score": float("nan")}

    model, _ = toy_train(tmp_path, toy_task(evaluate=evaluate), max_steps=STEPS, eval_every=3,
                         ema=DECAY)
    assert equal(weights(model), seen[-1])
    assert not equal(weights(model), raw[0][-1])


def test_zero_is_no_average(tmp_path, monkeypatch):
    """ema=0 keeps no second copy of the weights, neither in memory nor on the disk."""
    def refuse(*args):
        raise AssertionError("expected no average")

    monkeypatch.setattr(training, "Average", refuse)
    with pytest.raises(Stopped):
        toy_train(tmp_path, toy_task(loss=stopping(3, signal.SIGINT)), ema=0.0)
    assert (tmp_path / "checkpoints/newest/model.safetensors").exists()
    assert not (tmp_path / "checkpoints/newest/average.safetensors").exists()
    with pytest.raises(AssertionError, match="expected no average"):
        toy_train(tmp_path / "with", ema=0.5)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights, state and history of an undisturbed training with an average."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model, state = toy_train(folder, ema=0.9)
    return weights(model), state, read_history(folder / "history.jsonl")


@pytest.mark.parametrize(("at", "how"), [(7, signal.SIGTERM), (21, signal.SIGINT), (11, None)])
def test_survives_a_stop(tmp_path, undisturbed, at, how):
    """A stop in the middle changes not a bit of the average, nor of what is chosen by it."""
    with pytest.raises(Crash if how is None else Stopped):
        toy_train(tmp_path, toy_task(loss=stopping(at, how)), ema=0.9)
    assert (tmp_path / "checkpoints/newest/average.safetensors").exists()
    model, state = toy_train(tmp_path, model=toy_model(seed=99), ema=0.9)
    assert_same(tmp_path, model, state, undisturbed)


def test_last_is_kept(tmp_path):
    """keep=last ends with the last evaluation's weights though an earlier one was better."""
    seen = []
    scores = scripted(9, 5, 3, 1)

    def evaluate(model):
        seen.append(weights(model))
        return scores(model)

    model, state = toy_train(tmp_path, toy_task(evaluate=evaluate), max_steps=10, eval_every=4,
                             keep="last")
    assert (state.best_step, state.best, state.stopped_early) == (10, 1, False)
    assert equal(weights(model), seen[-1])
    assert [line["step"] for line in timeless(read_history(tmp_path / "history.jsonl"))
            if "eval" in line] == [0, 4, 8, 10]
