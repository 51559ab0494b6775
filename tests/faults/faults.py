"""Runs of the real entry point in a process of their own, ended or disturbed at a chosen moment."""

import builtins
import errno
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import safetensors.torch
from safetensors import SafetensorError
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import pipeline.stages.sts  # noqa: F401  (once, and not in every child)
import run
from pipeline.config import SAMPLE
from pipeline.files import sha256

WORDS = ["stage=sts", "chain=[simcse,sts]", "encoder.max_length=32", "precision=fp32",
         "sts.head=bi", "simcse.max_steps=6", "simcse.batch_size=8", "simcse.eval_every=2",
         "sts.max_steps=6", "sts.batch_size=8", "sts.eval_every=2", "sts.calibrate=monotone"]
TIMED = {"manifest.json", "history.jsonl", "log.txt", "config.yaml"}  # a clock or a path in them


def prepare(folder: Path) -> list[str]:
    """Makes a tiny encoder and the sample's first rows in folder; the words of a chain on them."""
    import torch

    data, encoder = folder / "data", folder / "encoder"
    data.mkdir()
    for name, rows in (("train", 32), ("dev", 16), ("test", 12)):
        table = pd.read_csv(SAMPLE / f"{name}.csv", dtype=str, keep_default_na=False)
        table.head(rows).to_csv(data / f"{name}.csv", index=False)
    text = "".join(path.read_text(encoding="utf-8") for path in data.glob("*.csv"))
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *sorted(set(text) - set(" \n"))]
    inner = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(pieces)},
                                       unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)])
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", cls_token="<s>",
                            sep_token="</s>", unk_token="<unk>").save_pretrained(encoder)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2,
                         num_attention_heads=2, intermediate_size=64, pad_token_id=0,
                         max_position_embeddings=64)).save_pretrained(encoder)
    return [*WORDS, f"data.dir={data}", f"encoder.path={encoder}"]


def begun(words: list[str], folder: Path, disturbance: Callable[[], None] | None = None) -> int:
    """Starts the command in folder as a child of this process; its id. Speech goes to said.txt."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(folder)
        speech = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(speech, 1)
        os.dup2(speech, 2)
        # pytest has put objects of its own in their places
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if disturbance:
            disturbance()
        code = run.main(words)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Waits for the child; its exit code, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(words: list[str], folder: Path, after: float) -> int:
    """Runs the command and kills it (-9) after so many seconds, if it is not at its end."""
    child, deadline = begun(words, folder), time.monotonic() + after
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return ended(child)


def at_write(number: int, action: Callable[[str], None],
             tally: Path | None = None) -> Callable[[], None]:
    """A disturbance: the action, given the path, at this of the child's writes, counted from 1.

    A write is the opening of a file to write to, a flush, a renaming, a folder made, a file of
    tensors. tally: a file that grows by a byte a write.
    """
    count, counter = 0, os.open(tally, os.O_WRONLY | os.O_APPEND) if tally else None

    def reached(path: object) -> None:
        nonlocal count
        if Path(str(path)).name in ("said.txt", "null"):
            return
        count += 1
        if counter is not None:
            os.write(counter, b".")
        if count == number:
            action(str(path))

    def before(function: Callable, place: int = 0) -> Callable:
        def hooked(*arguments, **options):
            reached(arguments[place])
            return function(*arguments, **options)

        return hooked

    def opening(file, mode="r", *rest, **options):
        if set(mode) & set("wax"):
            reached(file)
        return original(file, mode, *rest, **options)

    original = io.open

    def arrange() -> None:
        builtins.open = io.open = opening
        for name in ("fsync", "replace", "rename", "mkdir"):
            setattr(os, name, before(getattr(os, name)))
        safetensors.torch.serialize_file = before(safetensors.torch.serialize_file, 1)

    return arrange


def full(path: str) -> None:
    """The system's word for a full disk; of tensors, safetensors' own."""
    if path.endswith(".safetensors"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def denied(path: str) -> None:
    """The system's word for a folder that may not be written to."""
    raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)


def kill(path: str) -> None:
    """The end of this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def results(folder: Path) -> dict[str, str]:
    """Checksum of every file of the runs and submissions that holds no clock and no path."""
    found = {path.relative_to(folder).as_posix(): sha256(path)
             for name in ("runs", "submissions") for path in sorted((folder / name).rglob("*"))
             if path.is_file() and path.name not in TIMED and not path.name.startswith(".")}
    return {name: mark for name, mark in found.items()
            if not (name.startswith("submissions") and name.endswith(".json"))}


def leftovers(folder: Path) -> list[str]:
    """What a command that is done must not leave: files aside, old folders, checkpoints."""
    return [path.name for path in folder.rglob("*")
            if path.name.endswith((".tmp", ".old")) or path.name == "checkpoints"]


def moments(seed: int, most: int, count: int) -> list[int]:
    """So many different numbers from 1 to most."""
    return sorted(random.Random(seed).sample(range(1, most + 1), min(count, most)))
