"""Device, precision, seeds and the memory estimate.

python -m pytest tests/test_hardware.py
"""

import ctypes
import random

import numpy as np
import psutil
import pytest
import torch
from transformers import BertConfig, BertModel

from pipeline import hardware
from pipeline.errors import UserError


@pytest.fixture
def restored(monkeypatch):
    """Puts torch's deterministic mode and the environment back."""
    before = torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(before)


def test_fp16_on_cpu_is_refused():
    """fp16 needs cuda: the error names what there is instead."""
    with pytest.raises(UserError, match=r"precision: expected bf16 or fp32 on cpu, got 'fp16'"):
        hardware.pick_precision("fp16", "cpu")
    assert hardware.pick_precision("fp16", "cuda") == "fp16"


@pytest.mark.parametrize(("device", "native", "expected"), [
    ("cpu", True, "bf16"), ("cpu", False, "fp32"), ("mps", False, "fp32"),
    ("cuda", True, "bf16"), ("cuda", False, "fp16"),
])
def test_auto_precision_looks_before_it_chooses(monkeypatch, device, native, expected):
    """bf16 only where it is native."""
    asked = []
    monkeypatch.setattr(hardware, "computes_bf16", lambda name: asked.append(name) or native)
    assert hardware.pick_precision("auto", device) == expected
    assert asked == [device]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_named_precision_is_taken(monkeypatch, precision):
    """What the user names is taken, native or not."""
    monkeypatch.setattr(hardware, "computes_bf16", lambda device: precision == "fp32")
    assert hardware.pick_precision(precision, "cpu") == precision


def test_bf16_on_other_devices():
    """mps is not asked for bf16, and the question has a plain answer on a CPU."""
    assert hardware.computes_bf16("mps") is False
    assert isinstance(hardware.computes_bf16("cpu"), bool)


@pytest.mark.parametrize(("cuda", "mps", "expected"), [
    (True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_device_is_the_best_there_is(monkeypatch, cuda, mps, expected):
    """cuda before mps before cpu; cpu when it is named."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert hardware.pick_device("auto") == expected
    assert hardware.pick_device("cpu") == "cpu"


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_absent_device_is_refused(monkeypatch, device):
    """A device that the machine lacks is one line that names those it has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=rf"^device: expected one of .*\(cpu\), got '{device}'$"):
        hardware.pick_device(device)


@pytest.mark.usefixtures("restored")
def test_start_seeds_everything():
    """The same seed repeats torch's, numpy's and Python's numbers; another seed does not."""
    def draws(seed):
        hardware.start("cpu", "fp32", seed, deterministic=False)
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    first, again, other = draws(1), draws(1), draws(2)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


@pytest.mark.usefixtures("restored")
def test_start_follows_device_precision_and_determinism():
    """Stages of one process may differ in precision and determinism."""
    for precision, expected in (("bf16", "bf16"), ("fp32", "no"), ("bf16", "bf16")):
        deterministic = precision == "fp32"
        accelerator = hardware.start("cpu", precision, 0, deterministic)
        assert accelerator.device.type == "cpu"
        assert accelerator.mixed_precision == expected
        assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_training_memory_grows_with_tokens():
    """Linear in tokens and bytes, more for deeper models, never less than AdamW's 16 bytes."""
    small = BertConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=256)
    memory = [hardware.training_memory(small, tokens, 4) for tokens in (0, 1000, 2000)]
    assert memory[0] < memory[1] < memory[2]
    assert memory[2] - memory[1] == memory[1] - memory[0]
    half = hardware.training_memory(small, 1000, 2)
    assert (half - memory[0]) * 2 == memory[1] - memory[0]
    parameters = sum(p.numel() for name, p in BertModel(small).named_parameters()
                     if "position" not in name and "pooler" not in name)
    assert memory[0] == pytest.approx(16 * parameters, rel=0.05)
    deep = BertConfig(vocab_size=500, hidden_size=64, num_hidden_layers=4, num_attention_heads=2,
                      intermediate_size=256)
    assert hardware.training_memory(deep, 1000, 4) > memory[1]


def test_free_memory_and_machine():
    """A CPU's free memory is that of the machine; a manifest says what computed."""
    assert hardware.free_memory("cpu") > 1_000_000
    found = hardware.machine("cpu")
    assert found["device"] == "cpu"
    assert found["threads"] == torch.get_num_threads()
    assert found["processor"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_memory_is_returned():
    """Small blocks that were freed below one that stays: 64 MiB, held by the heap until then."""
    def resident() -> int:
        return psutil.Process().memory_info().rss

    blocks = [bytearray(32_000) for _ in range(2000)]
    last = bytearray(32_000)
    del blocks
    before = resident()
    hardware.return_memory()
    assert before - resident() > 32 * 2**20
    assert len(last) == 32_000
