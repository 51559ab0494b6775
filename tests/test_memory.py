"""Out of memory: one line that says what to lower, and a run that goes on.

python -m pytest tests/test_memory.py
"""

import re

import pytest
import torch
from toy import RUN, done, files_of, only, read_json, small

from pipeline.hardware import is_out_of_memory
from pipeline.stages import fitting, simcse

TOO_MUCH = 10**15  # bytes


def at_call(monkeypatch, module, name: str, number: int) -> None:
    """The module's function asks the allocator for too much at this of its calls."""
    original, calls = getattr(module, name), []

    def loss(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            torch.empty(TOO_MUCH)
        return original(*arguments)

    monkeypatch.setattr(module, name, loss)


def failed(result: tuple[int, str, str]) -> str:
    """The one error line of a command that ended with 1, without a traceback."""
    code, out, err = result
    assert code == 1, out + err
    assert err.count("error: ") == 1
    assert "Traceback" not in out + err
    return err[err.index("error: "):].strip()


def test_what_is_out_of_memory():
    """The allocators' own words, and no other failure."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(TOO_MUCH)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("a fault of ours"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator"))


def test_goes_on_in_smaller_pieces(command, competition, make_encoder, tmp_path, monkeypatch,
                                   caplog):
    """simcse: what to lower; with micro_batch lowered the same run goes on from its checkpoint."""
    words = ["stage=simcse", *small(make_encoder())]
    with monkeypatch.context() as patch:
        at_call(patch, simcse, "info_nce", 3)
        said = failed(command(*words))
    assert said.startswith("error: simcse on cpu: out of memory; lower simcse.micro_batch=4 (the "
                           "same run goes on from its last checkpoint), or simcse.batch_size (now "
                           "8), encoder.max_length (now 32), or take precision=bf16 (another run")
    run = only(tmp_path / "runs/simcse")
    assert "Traceback" in (run / "log.txt").read_text(encoding="utf-8")
    assert read_json(run / "manifest.json")["status"] == "running"
    done(command, *words, "simcse.micro_batch=4")
    assert "resumed at step 2 of 4" in caplog.text
    assert only(tmp_path / "runs/simcse") == run
    assert files_of(run) == RUN
    done(command, *words, "simcse.micro_batch=2")
    assert f"simcse: reusing {run.relative_to(tmp_path)}" in caplog.text


def test_another_run_with_what_was_advised(command, competition, make_encoder, tmp_path,
                                           monkeypatch, caplog):
    """sts has no pieces: a smaller batch is another run, from the simcse that is finished."""
    words = ["stage=sts", *small(make_encoder())]
    with monkeypatch.context() as patch:
        at_call(patch, fitting, "logistic_link", 1)
        said = failed(command(*words, "sts.binary_weight=0.1"))
    assert re.match(r"error: sts on cpu: out of memory; lower sts.batch_size \(now 8\), "
                    r"encoder.max_length \(now 32\), or take precision=bf16 \(another run", said)
    caplog.clear()
    done(command, *words, "sts.batch_size=4", "sts.binary_weight=0.1")
    assert "simcse: reusing" in caplog.text
    assert len(list((tmp_path / "runs/sts").glob("*-*"))) == 2
    assert len(list((tmp_path / "runs/simcse").glob("*-*"))) == 1


def test_outside_training(command, competition, monkeypatch):
    """Where no key of a stage helps, one line still."""
    monkeypatch.setattr("pipeline.stages.check.read_competition", lambda _: torch.empty(TOO_MUCH))
    assert failed(command("stage=check", f"data.dir={competition}")) == (
        "error: stage=check: out of memory; free some, or take device=cpu or a smaller encoder")
