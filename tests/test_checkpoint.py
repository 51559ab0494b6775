"""A stopped training goes on as if nothing had happened, bit for bit.

python -m pytest tests/test_checkpoint.py
"""

import os
import signal

import pytest
import torch
from torch import nn
from toy import (
    PER_EPOCH,
    Crash,
    assert_same,
    equal,
    read_json,
    stopping,
    toy_loss,
    toy_model,
    toy_recipe,
    toy_task,
    toy_train,
    weights,
)

from pipeline import checkpoint, training
from pipeline.checkpoint import State
from pipeline.errors import Stopped
from pipeline.history import read_history
from pipeline.optimizer import adamw


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights, state and history of an undisturbed training of 26 steps."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model, state = toy_train(folder)
    return weights(model), state, read_history(folder / "history.jsonl")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [1, 7, 8, 21])
def test_resumed_after_a_signal(tmp_path, undisturbed, at, number):
    """A signal ends the step, saves and raises Stopped; the next call gives the same bits."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert at % PER_EPOCH, "expected a step in the middle of an epoch"
    with pytest.raises(Stopped) as caught:
        toy_train(tmp_path, toy_task(loss=stopping(at, number)))
    assert caught.value.number == number
    assert f"after step {at}:" in str(caught.value)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    steps = [line["step"] for line in read_history(tmp_path / "history.jsonl") if "loss" in line]
    assert steps == list(range(1, at + 1))
    calls = []

    def counted(model, rows):
        calls.append(rows)
        return toy_loss(model, rows)

    model, state = toy_train(tmp_path, toy_task(loss=counted), toy_model(seed=99))
    assert len(calls) == 26 - at
    assert_same(tmp_path, model, state, undisturbed)


@pytest.mark.parametrize("at", [3, 12, 26])
def test_resumed_after_a_crash(tmp_path, undisturbed, at):
    """It goes on from the last evaluation; what came after is done and written anew."""
    with pytest.raises(Crash):
        toy_train(tmp_path, toy_task(loss=stopping(at, None)))
    with open(tmp_path / "history.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 26, "loss": 99.0}\n{"step": 2')
    model, state = toy_train(tmp_path, model=toy_model(seed=99 if at > 4 else 0))
    assert_same(tmp_path, model, state, undisturbed)


def test_stopped_three_times(tmp_path, undisturbed):
    """Stopping again and again changes nothing."""
    for after in (5, 5, 9):
        with pytest.raises(Stopped):
            toy_train(tmp_path, toy_task(loss=stopping(after, signal.SIGINT)))
    assert read_json(tmp_path / "checkpoints/newest/state.json")["step"] == 19
    model, state = toy_train(tmp_path)
    assert_same(tmp_path, model, state, undisturbed)


def test_patience_is_carried_over(tmp_path):
    """Evaluations without a better one count across a stop; a training that ended stays ended."""
    options = {"eval_every": 2, "patience": 4}
    model, end = toy_train(tmp_path / "whole", **options)
    assert end.stopped_early
    assert end.step < 26
    task = toy_task(loss=stopping(end.step - 3, signal.SIGINT))
    with pytest.raises(Stopped):
        toy_train(tmp_path / "torn", task, **options)
    assert 0 < read_json(tmp_path / "torn/checkpoints/newest/state.json")["waiting"] < 4
    for _ in range(2):
        again, state = toy_train(tmp_path / "torn", **options)
        assert (state.step, state.best, state.best_step, state.waiting, state.stopped_early) == (
            end.step, end.best, end.best_step, end.waiting, True)
        assert equal(weights(again), weights(model))


def test_signal_in_the_last_step(tmp_path, undisturbed):
    """Ctrl-C in the last step stops too, so that a chain does not go on to its next stage."""
    with pytest.raises(Stopped):
        toy_train(tmp_path, toy_task(loss=stopping(26, signal.SIGINT)))
    model, state = toy_train(tmp_path)
    assert_same(tmp_path, model, state, undisturbed)


def test_signal_between_flush_and_save(tmp_path, undisturbed, monkeypatch):
    """A signal at any moment of a step loses no line of the history."""
    look, calls = training.look, []

    def late(*args, **options):
        calls.append(args)
        if len(calls) == 8:  # the first call is of step 0
            os.kill(os.getpid(), signal.SIGINT)
        return look(*args, **options)

    monkeypatch.setattr(training, "look", late)
    with pytest.raises(Stopped):
        toy_train(tmp_path)
    monkeypatch.undo()
    model, state = toy_train(tmp_path)
    assert_same(tmp_path, model, state, undisturbed)


def trained(folder, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The toy after two optimizer steps, saved as newest."""
    model = toy_model(seed)
    optimizer = adamw(model, toy_recipe())
    for _ in range(2):
        toy_loss(model, torch.arange(4)).backward()
        optimizer.step()
    checkpoint.save_newest(folder, model, optimizer, None, State(step=2, best=0.5, waiting=3))
    return model, optimizer


def test_everything_is_restored(tmp_path):
    """Weights, AdamW's moments and steps, the generator and the state come back as they were."""
    model, optimizer = trained(tmp_path)
    drawn = torch.rand(3)
    other = toy_model(seed=3)
    fresh = adamw(other, toy_recipe(learning_rate=9.0))
    torch.manual_seed(77)
    state = checkpoint.restore(tmp_path, other, fresh, None)
    assert state == State(step=2, best=0.5, waiting=3)
    assert torch.equal(torch.rand(3), drawn)
    assert equal(weights(other), weights(model))
    before, after = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, values in before.items():
        assert equal({name: torch.as_tensor(value) for name, value in values.items()},
                     {name: torch.as_tensor(value) for name, value in after[index].items()})
        assert values["exp_avg"].any()


def test_shared_tensors(tmp_path):
    """Tied weights are saved and restored."""
    model = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)})
    model["two"].weight = model["one"].weight
    checkpoint.save_best(tmp_path, model)
    expected = weights(model)
    nn.init.zeros_(model["one"].weight)
    checkpoint.load_best(tmp_path, model)
    assert equal(weights(model), expected)
    assert expected["one.weight"].any()


def test_whole_checkpoint_is_not_called_damaged(tmp_path, caplog):
    """No checkpoint and a good one are no reason for a warning."""
    trained(tmp_path)
    assert checkpoint.restore(tmp_path, *fresh(), None).step == 2
    assert checkpoint.restore(tmp_path / "none", *fresh(), None) == State()
    assert not caplog.records


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    """An untrained toy and its optimizer."""
    model = toy_model(seed=9)
    return model, adamw(model, toy_recipe())
