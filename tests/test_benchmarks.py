"""The benchmarks run, count the same tokens for all, and compute their figures as they say.

python -m pytest tests/test_benchmarks.py
"""

import json
import math
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from benchmarks import gpu, growth, limit, measuring, ours, peers, synthetic
from benchmarks.work import Work
from pipeline.packing import ROUND


@pytest.fixture
def work(make_encoder, competition) -> Work:
    """Two steps of eight with the tiny encoder, in fp32 on the CPU."""
    return Work(str(make_encoder()), str(competition), "mean", "표 ", max_length=60, batch=8,
                steps=2, sentences=20, dev=12, device="cpu")


def assert_sane(row: dict) -> None:
    """Every figure is there, finite, and positive where it must be."""
    assert all(math.isfinite(value) for value in row.values())
    assert min(row[name] for name in ("seconds", "processor", "real", "gib")) > 0
    assert row["processed"] >= row["real"]


@pytest.mark.parametrize("task", ["simcse", "cross", "encode"])
def test_same_work_for_all(work, task, monkeypatch):
    """Ours and every peer see the same real tokens; only the peers' batches are padded."""
    monkeypatch.setattr("pipeline.hardware.computes_bf16", lambda device: False)
    found = {name: run(work) for name, run in peers.variants(task).items()}
    assert next(iter(found)) == "ours"
    for row in found.values():
        assert_sane(row)
    encoder = ours.loaded(work)
    texts = {"simcse": work.training_texts() * 2, "encode": work.texts[:20],
             "cross": list(zip(*(work.training_pairs()[name] for name in (
                 "sentence_1", "sentence_2")), strict=True))}[task]
    assert {row["real"] for row in found.values()} == {int(encoder.tokens(texts).lengths.sum())}
    assert max(row["processed"] for row in found.values()) > found["ours"]["real"]
    assert found["ours"]["processed"] % ROUND == 0
    assert 0 <= found["ours"]["processed"] - found["ours"]["real"] < ROUND * work.steps
    rows = peers.rows_of(found)
    assert rows[0]["time : ours"] == rows[0]["memory : ours"] == 1
    assert all(row[name] != "" for row in rows for name in peers.COLUMNS)
    assert peers.table("title", peers.COLUMNS, rows).count("\n") == len(rows) + 4


@pytest.mark.parametrize("task", ["simcse", "encode"])
def test_same_objective(work, task, tmp_path, monkeypatch):
    """Without dropout and learning, ours and the peer's loss of the same batch are equal."""
    monkeypatch.setattr("pipeline.hardware.computes_bf16", lambda device: False)
    monkeypatch.setattr(ours, "LEARNING_RATE", 1e-12)
    monkeypatch.setattr(peers, "LEARNING_RATE", 1e-12)
    folder = shutil.copytree(work.encoder, tmp_path / "still")
    config = json.loads((folder / "config.json").read_text())
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        config[name] = 0.0
    (folder / "config.json").write_text(json.dumps(config))
    still = replace(work, encoder=str(folder), steps=1)
    figure = {"simcse": ("loss", "score"), "encode": ("norm",)}[task]
    found = [run(still) for name, run in peers.variants(task).items()]
    for name in figure:
        assert [row[name] for row in found] == pytest.approx([found[0][name]] * len(found),
                                                             rel=1e-4)


def test_useful_work_by_hand(make_encoder):
    """4·d² + 2·d·inner weights a layer; 6 operations a weight and token, 2 when only encoding."""
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    model = AutoModel.from_pretrained(make_encoder("roberta"))
    assert measuring.matmul_parameters(model) == weights == 16384
    with torch.device("meta"):
        large = BertModel(BertConfig(vocab_size=32, hidden_size=1024, num_hidden_layers=24,
                                     num_attention_heads=16, intermediate_size=4096))
    assert measuring.matmul_parameters(large) == 301_989_888  # klue/roberta-large's 302 M
    assert measuring.useful_flops(weights, 10, training=True) == 983_040
    assert measuring.useful_flops(weights, 10, training=False) == 327_680


def test_share_of_the_limit(work):
    """Useful work a second as a share of the fastest product; products are of the layers' sizes."""
    found = limit.peaks(32, 64, 128, "fp32", "cpu")
    assert list(found) == ["attention", "up", "down", "square"]
    assert min(found.values()) > 0
    assert limit.shapes(32, 64, 128)["down"] == (128, 64, 32)
    (row,) = limit.rows_of({"simcse": {"flops": 3e9, "seconds": 2.0, "processor": 3.0}}, 5e9, 2)
    assert row["GFLOP/s"] == 1.5
    assert row["share %"] == 30
    assert row["processor share %"] == 40
    stage = ours.simcse(work, "fp32")
    assert stage["flops"] == 6 * 16384 * stage["real"]


def test_limit_by_a_coarse_clock(monkeypatch):
    """Products shorter than a tick of the clock, whose reading would be 0 for most of them."""
    done = [0]

    def linear(x: torch.Tensor, weight: torch.Tensor) -> None:
        done[0] += 1

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(limit, "ENOUGH", 0.01)
    monkeypatch.setattr(measuring, "both_clocks", lambda device: (done[0] // 10 * 0.01,) * 2)
    for name, found in limit.peaks(32, 64, 128, "fp32", "cpu").items():
        rows, wide, out = limit.shapes(32, 64, 128)[name]
        assert found == pytest.approx(2 * rows * wide * out / 0.001, rel=0.25)  # 1 ms each


def test_medians_and_turns(monkeypatch):
    """Variants take turns, and each figure's median is its own."""
    asked, values = [], iter([3.0, 10.0, 1.0, 30.0, 2.0, 20.0])
    monkeypatch.setattr(measuring, "child", lambda words, threads: (
        asked.append(words[-1]), {"seconds": next(values)})[1])
    assert measuring.alternated(["x"], ["one", "other"], 3, 1) == {
        "one": {"seconds": 2.0}, "other": {"seconds": 20.0}}
    assert asked == ["one", "other"] * 3


def test_command_measures_the_child():
    """Seconds and peak memory are those of the command, which has to succeed."""
    found = measuring.command(["-c", "x = b'1' * 2**28; import time; time.sleep(0.1); print(7)"])
    assert found["output"] == "7\n"
    assert found["seconds"] > 0.1
    assert found["gib"] >= 0.25
    with pytest.raises(SystemExit, match="ended with 3"):
        measuring.command(["-c", "raise SystemExit(3)"])


def test_synthetic_lengths(tmp_path):
    """Sentences have as many tokens as asked, for one and for pairs; drawn ones vary."""
    synthetic.main("encoder", str(tmp_path / "encoder"))
    texts = synthetic.sentences(50, 500, tokens=32)
    work = Work(str(tmp_path / "encoder"), "", "cls", "")
    encoder = ours.loaded(work)
    assert set(encoder.tokens(texts).lengths) == {32}
    assert set(encoder.tokens(list(zip(texts, texts, strict=True))).lengths) == {63}
    drawn = encoder.tokens(synthetic.sentences(2000, 500)).lengths
    assert 16 <= sorted(drawn)[1000] <= 20
    assert min(drawn) >= 4
    assert max(drawn) > 50
    synthetic.main("pairs", str(tmp_path / "pairs.csv"), "3")
    assert (tmp_path / "pairs.csv").read_text(encoding="utf-8").count("\n") == 4


def test_gpu_at_toy_size(tmp_path):
    """Every task of the card's benchmark runs on the CPU; the peer has the same tokens."""
    gpu.prepare(tmp_path, gpu.TINY)
    rows = []
    for task, (kind, work) in gpu.works(tmp_path, gpu.TINY, "cpu").items():
        found = {who: run(work) for who, run in gpu.contestants(kind).items()}
        for row in found.values():
            assert_sane(row)
        assert len({row["real"] for row in found.values()}) == 1
        rows += gpu.rows_of(task, work, kind, found, 1e12)
        if kind == "simcse":
            assert found["ours"]["real"] == work.batch * work.steps * 2 * 32
    assert [row["task"] for row in rows[::2]] == ["simcse 4 x 2", "simcse 8 x 2", "cross 4",
                                                  "encode"]
    assert all(row["MFU %"] > 0 for row in rows)


def test_gpu_needs_a_card(monkeypatch):
    """Without a card and without --tiny it says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match="expected a CUDA card"):
        gpu.main()


def test_growth(monkeypatch, capsys):
    """The real commands at toy sizes: a row a size, with time and memory."""
    monkeypatch.setattr(sys, "argv", ["growth", "--sizes", "100", "--pairs", "80", "10", "10",
                                      "--steps", "1", "--only", "start", "simcse"])
    growth.main()
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()
             if line.startswith("| ")]
    heads, (start, simcse) = lines[0], lines[1:]
    assert [head.strip() for head in heads] == list(growth.COLUMNS)
    assert simcse[1].strip() == "300"  # the competition's sentences and the file's
    assert float(start[2]) > 0
    assert all(float(value) > 0 for value in simcse[2:])
