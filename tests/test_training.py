"""The training loop against hand-written torch and hand-computed values.

python -m pytest tests/test_training.py
"""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn
from toy import (
    BATCH,
    PER_EPOCH,
    equal,
    jagged,
    scripted,
    timeless,
    toy_batches,
    toy_loss,
    toy_model,
    toy_recipe,
    toy_task,
    toy_train,
    weights,
)

from pipeline import hardware
from pipeline.encoder import load_encoder
from pipeline.errors import NotFinite, UserError
from pipeline.heads import PairScorer, raw_scores
from pipeline.history import read_history
from pipeline.optimizer import adamw, depth
from pipeline.training import Task, train


@pytest.mark.parametrize(("epochs", "max_steps", "per_epoch", "steps"), [
    (3.0, 0, 10, 30), (3.0, 7, 10, 7), (0.5, 0, 10, 5), (1.2, 0, 10, 12), (0.01, 0, 10, 1)])
def test_steps(epochs, max_steps, per_epoch, steps):
    """max_steps counts where it is given, else the epochs, and there is at least one step."""
    assert toy_recipe(epochs=epochs, max_steps=max_steps).steps(per_epoch) == steps


@pytest.mark.parametrize(("eval_every", "per_epoch", "interval"), [
    (0.25, 40, 10), (0.5, 7, 4), (0.01, 10, 1), (1, 10, 1), (50, 10, 50)])
def test_interval(eval_every, per_epoch, interval):
    """Below 1 the interval is in epochs, from 1 in steps."""
    assert toy_recipe(eval_every=eval_every).interval(per_epoch) == interval


@pytest.mark.parametrize(("warmup_ratio", "expected"), [
    (0.2, [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
    (0.0, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
    (1.0, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1])])
def test_rate_rises_and_falls_linearly(warmup_ratio, expected):
    """Up to the peak during warm-up, then down to nothing after the last step."""
    recipe = toy_recipe(warmup_ratio=warmup_ratio, learning_rate=0.02)
    assert [recipe.rate(step, 10) / 0.02 for step in range(10)] == pytest.approx(expected)
    assert recipe.rate(10, 10) == 0


def test_adamw_decays_matrices_only(make_encoder):
    """Every trained parameter stands in one group once; biases and norms do not decay."""
    scorer = PairScorer(load_encoder(str(make_encoder()), max_length=32), "cross")
    frozen = scorer.encoder.backbone.embeddings.position_embeddings.weight
    frozen.requires_grad_(False)
    optimizer = adamw(scorer, toy_recipe(weight_decay=0.3, learning_rate=0.01))
    names = {id(p): name for name, p in scorer.named_parameters() if p.requires_grad}
    found = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(found) == sorted(names)
    decay = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups
             for p in group["params"]}
    free = {name for name in decay if name.endswith("bias") or "LayerNorm" in name}
    assert "linear.bias" in free
    assert "linear.weight" not in free
    assert {name for name, value in decay.items() if value == 0} == free
    assert {value for name, value in decay.items() if name not in free} == {0.3}
    assert {group["lr"] for group in optimizer.param_groups} == {0.01}


def by_hand(steps: int, peak: float = 0.03) -> tuple[nn.Module, list[dict]]:
    """The toy trained by torch alone: AdamW, clipping at 0.5, warm-up over a fifth."""
    model = toy_model()
    torch.manual_seed(5)
    linears = [model[0], model[3]]
    optimizer = torch.optim.AdamW([
        {"params": [layer.weight for layer in linears], "weight_decay": 0.1},
        {"params": [layer.bias for layer in linears] + list(model[1].parameters()),
         "weight_decay": 0.0}], fused=False, foreach=False)
    warmup, lines = math.ceil(steps / 5), []
    for step in range(steps):
        rows = toy_batches(step // PER_EPOCH)[step % PER_EPOCH]
        rate = peak * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = toy_loss(model, rows)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        lines.append({"step": step + 1, "loss": loss.item(), "lr": rate, "grad_norm": norm.item(),
                      "tokens": 10 * len(rows)})
    return model, lines


@pytest.mark.parametrize("steps", [1, 5, 15])
def test_loop_equals_a_hand_written_one(tmp_path, steps):
    """Weights, losses, rates and norms are those of torch's own AdamW over the same batches."""
    expected, lines = by_hand(steps)
    model, state = toy_train(tmp_path, max_steps=steps, eval_every=steps)
    assert state.step == state.best_step == steps
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(tensor, toy_model().state_dict()[name], atol=1e-3)
    written = [line for line in read_history(tmp_path / "history.jsonl") if "loss" in line]
    assert any(line["grad_norm"] > 0.5 for line in lines), "clipping was not put to the test"
    for line, hand in zip(written, lines, strict=True):
        assert line.keys() == {*hand, "seconds"}
        assert {name: line[name] for name in hand} == pytest.approx(hand, rel=1e-4)


def test_best_weights_are_those_of_the_best_evaluation(tmp_path):
    """The model ends with the weights of the highest evaluation, not with the last or step 0's."""
    seen, values = [], iter([9.0, 0.1, 0.5, 0.3, 0.5])

    def evaluate(model):
        seen.append(weights(model))
        return {"score": next(values), "other": -len(seen)}

    model, state = toy_train(tmp_path, toy_task(evaluate=evaluate), max_steps=12, eval_every=3)
    assert (state.best, state.best_step, state.step, state.waiting) == (0.5, 6, 12, 2)
    assert equal(weights(model), seen[2])
    assert not equal(weights(model), seen[4])


@pytest.mark.parametrize(("patience", "last", "stopped"), [
    (1, 4, True), (2, 10, True), (3, 18, True), (4, 20, False), (0, 20, False)])
def test_patience(tmp_path, patience, last, stopped):
    """It stops at the patience-th evaluation in a row that is not better."""
    task = toy_task(evaluate=scripted(9, 1, 1, 2, 2, 1, 3, 0, 0, 0, 4))
    _, state = toy_train(tmp_path, task, max_steps=20, eval_every=2, patience=patience)
    assert (state.step, state.stopped_early) == (last, stopped)


def test_nan_is_never_best(tmp_path):
    """A NaN evaluation counts as not better, at first and after a number."""
    nan = float("nan")
    task = toy_task(evaluate=scripted(0, nan, -3, nan, nan))
    _, state = toy_train(tmp_path, task, max_steps=4, eval_every=1)
    assert (state.best, state.best_step, state.waiting) == (-3, 2, 2)
    lines = read_history(tmp_path / "history.jsonl")
    assert [line["eval"]["score"] for line in lines if "eval" in line] == [0, None, -3, None, None]


def test_nan_alone_leaves_the_last_weights(tmp_path):
    """Without any number there is no best step, patience still counts, the weights stay."""
    task = toy_task(evaluate=lambda model: {"score": float("nan")})
    model, state = toy_train(tmp_path, task, max_steps=9, eval_every=3, patience=3)
    assert (state.best_step, state.step, state.stopped_early) == (-1, 9, True)
    assert not equal(weights(model), weights(toy_model()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_loss_that_is_no_number(tmp_path, bad):
    """NotFinite names the step and the batch's sentences, and no such weights are saved."""
    steps = []

    def loss(model, rows):
        steps.append(rows)
        return toy_loss(model, rows) * (bad if len(steps) == 6 else 1)

    with pytest.raises(NotFinite) as caught:
        toy_train(tmp_path, toy_task(loss=loss))
    words = str(caught.value)
    assert "step 6:" in words
    assert "finite loss" in words
    named = {row for row in range(22) if f"sentence {row}." in words}
    assert named == set(steps[5].tolist())
    assert json.loads((tmp_path / "checkpoints/newest/state.json").read_text())["step"] == 4
    assert len(steps) <= 8, "it went on training beyond the next evaluation"


def test_gradient_that_is_no_number(tmp_path):
    """A finite loss with an infinite gradient ends the run too."""
    steps = []

    def loss(model, rows):
        steps.append(rows)
        zero = (model(X_ZERO) * 0).sum() if len(steps) == 3 else None
        return toy_loss(model, rows) + (0 if zero is None else torch.sqrt(zero))

    with pytest.raises(NotFinite, match=r"step 3: expected a finite grad_norm"):
        toy_train(tmp_path, toy_task(loss=loss))


X_ZERO = torch.zeros(1, 5)


def test_history(tmp_path):
    """A line a step, evaluations every eval_every and at the end, geometry at its own steps."""
    task = toy_task(measure=lambda model, step: {"uniformity": -1.0 - step}, measure_every=5)
    model, _ = toy_train(tmp_path, task, max_steps=13, eval_every=4)
    lines = read_history(tmp_path / "history.jsonl")
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 14))
    for line in steps:
        assert line.keys() == {"step", "loss", "lr", "grad_norm", "tokens", "seconds"}
        assert line["seconds"] >= 0
    sizes = [len(rows) for epoch in range(3) for rows in toy_batches(epoch)][:13]
    assert [line["tokens"] for line in steps] == [10 * size for size in sizes]
    assert set(sizes) == {BATCH, 2}
    assert [line["step"] for line in lines if "eval" in line] == [0, 4, 8, 12, 13]
    measured = [line for line in lines if "geometry" in line]
    assert [line["step"] for line in measured] == [0, 4, 5, 8, 10, 12, 13]
    for line in measured:
        assert line["geometry"] == {"uniformity": -1.0 - line["step"]}
        assert line["geometry_seconds"] >= 0
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert timeless(lines[:1]) == [{"step": 0, "geometry": {"uniformity": -1.0},
                                    "eval": jagged(toy_model())}]
    assert max(line["eval"]["score"] for line in lines[1:] if "eval" in line) == jagged(
        model)["score"]


def test_read_history_stops_where_a_crash_cut_a_line(tmp_path):
    """Whole lines before the torn one are kept."""
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo', encoding="utf-8")
    assert read_history(path) == [{"step": 1, "loss": 2.0}]
    assert read_history(tmp_path / "none.jsonl") == []


def test_cross_head_overfits_a_tiny_set(tmp_path, make_encoder, competition):
    """Sixteen pairs are learnt by heart: Pearson on the training set itself above 0.95."""
    frame = pd.read_csv(competition / "train.csv").head(16)
    labels = frame["label"].to_numpy()
    accelerator = hardware.start("cpu", "fp32", 0, False)
    scorer = PairScorer(load_encoder(str(make_encoder()), max_length=64), "cross")
    pairs, targets = scorer.pairs(frame), torch.tensor(labels / 5, dtype=torch.float32)

    def correlation(model):
        raw = raw_scores(model, pairs, torch.device("cpu"))
        return {"pearson": float(stats.pearsonr(raw, labels).statistic)}

    task = Task(batches=lambda epoch: [np.arange(16)], best_by="pearson", evaluate=correlation,
                loss=lambda model, rows: ((model(pairs.tokens.batch(rows)) - targets) ** 2).mean(),
                tokens=len, texts=lambda rows: frame["id"].iloc[rows].tolist())
    before = correlation(scorer)["pearson"]
    recipe = toy_recipe(max_steps=120, learning_rate=3e-3, warmup_ratio=0.1, max_grad_norm=1.0,
                        eval_every=40, weight_decay=0.01)
    state = train(scorer, task, recipe, accelerator, tmp_path)
    assert before < 0.8
    assert state.best == correlation(scorer)["pearson"] > 0.95


@pytest.mark.parametrize(("kind", "pooling"), [
    ("bert", "mean"), ("bert", "pooler"), ("roberta", "mean"), ("electra", "mean"),
    ("deberta-v2", "mean")])
def test_layer_decay(kind, pooling, make_encoder):
    """Of two layers: the head has the full rate, embeddings the third power of the share."""
    scorer = PairScorer(load_encoder(str(make_encoder(kind)), pooling, max_length=32), "cross")
    optimizer = adamw(scorer, toy_recipe(layer_decay=0.8, weight_decay=0.3))
    names = {id(p): name for name, p in scorer.named_parameters()}
    found = {names[id(p)]: (group["share"], group["weight_decay"])
             for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == set(names.values())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)
    starts = {"encoder.backbone.embeddings": 3, "encoder.backbone.encoder.layer.0.": 2,
              "encoder.backbone.encoder.layer.1.": 1, "encoder.backbone.pooler.": 0, "linear.": 0,
              "encoder.backbone.encoder.rel_embeddings.": 3}  # DeBERTa's, of relative positions
    for name, (share, decay) in found.items():
        power, = {power for start, power in starts.items() if name.startswith(start)}
        assert share == pytest.approx(0.8**power), name
        assert decay == (0.0 if name.endswith("bias") or "LayerNorm" in name else 0.3), name
    seen = {start for start in starts for name in found if name.startswith(start)}
    assert {"encoder.backbone.embeddings", "linear."} < seen
    assert len(seen) == 4 + (pooling == "pooler") + (kind == "deberta-v2")


def test_no_layer_decay_is_two_groups(make_encoder):
    """With a share of 1 there are a decaying and a free group, both at the full rate."""
    scorer = PairScorer(load_encoder(str(make_encoder()), max_length=32), "cross")
    one, two = adamw(scorer, toy_recipe(weight_decay=0.3)).param_groups
    trained = list(scorer.parameters())
    assert [id(p) for p in one["params"]] == [id(p) for p in trained if p.ndim > 1]
    assert [id(p) for p in two["params"]] == [id(p) for p in trained if p.ndim <= 1]
    assert (one["weight_decay"], two["weight_decay"]) == (0.3, 0.0)
    assert one["share"] == two["share"] == 1.0


def test_layer_decay_scales_the_steps(tmp_path):
    """AdamW's first step moves a weight by its learning rate: a share of it in lower layers."""
    class Tower(nn.Module):
        """Three linear layers with the names of an encoder's."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.encoder = nn.ModuleDict({
                "embeddings": nn.Linear(5, 6), "layer": nn.ModuleList([nn.Linear(6, 6)])})
            self.head = nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Scores."""
            low = torch.tanh(self.encoder["embeddings"](x))
            return self.head(torch.tanh(self.encoder["layer"][0](low)))

    model = Tower()
    before = weights(model)
    toy_train(tmp_path, model=model, max_steps=1, warmup_ratio=0.0, weight_decay=0.0,
              layer_decay=0.5)
    for name, tensor in weights(model).items():
        share = 0.25 if "embeddings" in name else 0.5 if "layer" in name else 1.0
        assert (tensor - before[name]).abs().max().item() == pytest.approx(0.03 * share, rel=1e-3)


@pytest.mark.parametrize(("name", "level"), [
    ("encoder.backbone.embeddings.LayerNorm.weight", 0), ("backbone.encoder.layer.11.output.x", 12),
    ("encoder.backbone.embeddings_project.bias", 0), ("encoder.backbone.encoder.LayerNorm.bias", 0),
    ("encoder.backbone.layers.3.attn.Wqkv.weight", 4), ("encoder.backbone.final_norm.weight", None),
    ("encoder.backbone.encoder.layer.10.output.LayerNorm.bias", 11), ("linear.bias", None)])
def test_depth(name, level):
    """Embeddings lowest, then the layers by number, whatever the architecture calls them."""
    assert depth(name) == level


def test_layer_decay_without_layers(tmp_path):
    """A decay that could not do what it says is refused."""
    with pytest.raises(UserError, match=r"sts\.layer_decay: expected 1 for an encoder without"):
        toy_train(tmp_path, layer_decay=0.9)
