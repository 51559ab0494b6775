"""Ours against sentence-transformers and transformers' Trainer on the same work.

    python -m benchmarks.peers --encoder DIR --data DIR --tasks simcse cross encode --threads 2

simcse: sentence-transformers by MultipleNegativesRankingLoss, every sentence as its own positive.
cross: CrossEncoder by its trainer with MSELoss, and the Trainer on pairs tokenised beforehand.
encode: `SentenceTransformer.encode`. All have the same encoder, pooling, prefix, rows, batch,
steps, learning rates, clipping and threads; a peer's default is fp32 (and, of the Trainer, random
batches), its best bf16 where the processor has it (and length grouping). A cross peer has its
architecture's own classification head, which ours has not: under 1% of the work.

The seconds are those of the training loop alone, after a step to warm up: batching, both passes,
clipping, AdamW and, where it belongs to the peer's loop, tokenising. Ours and the Trainer tokenise
once, before the loop. Encoding goes from text to vectors and has tokenising in it for all.
Processor seconds are the process's own on all threads: what others do on a shared machine is not
in them. Real tokens leave padding out. Memory is the process's peak (RSS), on a card the tensors'.
The loss is the timed steps' mean; the score is dev's: after few steps it says that all do the same
work, not how good they get (the peers' schedule begins at rate 0, so that they are a step behind).
The Trainer groups lengths within a quarter of the steps and at most 50 batches: under 8 steps not
at all, fully from 200. The peers are extras of the tests' requirements, not dependencies.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.measuring import TokenCount, alternated, both_clocks, passed, peak_gib, table
from benchmarks.work import LEARNING_RATE, SEED, TEMPERATURE, Work, add_arguments, from_arguments

COLUMNS = {"who": "", "seconds": ".2f", "processor s": ".2f", "tokens/s": ",.0f",
           "padding": ".2f", "GiB": ".2f", "loss": ".4f", "dev score": ".3f",
           "time : ours": ".2f", "processor : ours": ".2f", "memory : ours": ".2f"}



def device_of(work: Work) -> str:
    """cuda or cpu."""
    from pipeline import hardware

    return hardware.pick_device(work.device)


def is_bf16(work: Work, precision: str) -> bool:
    """Whether a peer computes in bf16: at its best where it is native."""
    from pipeline import hardware

    return precision == "best" and hardware.pick_precision("auto", device_of(work)) == "bf16"


def arguments(work: Work, kind: Any, folder: str, precision: str, **more: Any) -> Any:
    """A peer's training arguments: ours, and nothing saved or reported."""
    steps = work.steps
    return kind(output_dir=folder, num_train_epochs=1, per_device_train_batch_size=work.batch,
                learning_rate=LEARNING_RATE, warmup_steps=math.ceil(0.1 * steps),
                weight_decay=0.01, max_grad_norm=1.0, lr_scheduler_type="linear", seed=SEED,
                bf16=is_bf16(work, precision), use_cpu=device_of(work) == "cpu",
                save_strategy="no", report_to=[], logging_strategy="no", disable_tqdm=True, **more)


def timed(work: Work, model: Any, trainer: Callable[[Any, str], Any],
          rows: Any) -> dict[str, Any]:
    """An epoch of a peer's trainer over its rows, after another on one batch to warm up."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Reads the clocks around the epoch."""

        def on_epoch_begin(self, *args: Any, **more: Any) -> None:
            self.began = both_clocks(device_of(work))

        def on_epoch_end(self, *args: Any, **more: Any) -> None:
            self.ended = both_clocks(device_of(work))

    count, clock = TokenCount(model), Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer(rows.select(range(work.batch)), folder).train()
        runner = trainer(rows, folder)
        runner.add_callback(clock)
        count.restart()
        loss = runner.train().training_loss
    return {**passed(clock.began, clock.ended), "real": int(count.real),
            "processed": count.processed, "gib": peak_gib(), "loss": loss}


def sentence_encoder(work: Work, **options: Any) -> Any:
    """The work's encoder as a SentenceTransformer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(work.encoder, max_seq_length=work.reading.max_length, **options)
    pooling = Pooling(body.get_embedding_dimension(), work.reading.pooling)
    return SentenceTransformer(modules=[body, pooling], device=device_of(work))


def st_simcse(work: Work, precision: str) -> dict[str, Any]:
    """SimCSE as sentence-transformers does it."""
    import numpy as np
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from pipeline.metrics import spearman

    model = sentence_encoder(work)
    rows = Dataset.from_dict({"anchor": (texts := work.training_texts()), "positive": texts})

    def trainer(data: Any, folder: str) -> Any:
        return SentenceTransformerTrainer(
            model, arguments(work, SentenceTransformerTrainingArguments, folder, precision,
                             prompts=work.reading.prefix or None),
            data, loss=MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE))

    found = timed(work, model, trainer, rows)
    dev = work.dev_pairs()
    left, right = (model.encode(dev[name].tolist(), prompt=work.reading.prefix or None,
                                normalize_embeddings=True) for name in ("sentence_1", "sentence_2"))
    return found | {"score": float(spearman(np.sum(left * right, axis=1), dev["label"].to_numpy()))}


def prefixed(work: Work, frame: Any) -> list[list[str]]:
    """The frame's pairs with the prefix before every sentence, as ours reads them."""
    return [[work.reading.prefix + text for text in frame[name]]
            for name in ("sentence_1", "sentence_2")]


def st_cross(work: Work, precision: str) -> dict[str, Any]:
    """Regression by sentence-transformers' CrossEncoder."""
    from datasets import Dataset
    from sentence_transformers import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import MSELoss
    from torch import nn

    from pipeline.metrics import pearson

    model = CrossEncoder(work.encoder, num_labels=1, max_length=work.reading.max_length,
                         activation_fn=nn.Identity(), device=device_of(work))
    frame, dev = work.training_pairs(), work.dev_pairs()
    left, right = prefixed(work, frame)
    rows = Dataset.from_dict({"one": left, "other": right, "label": frame["label"] / 5})

    def trainer(data: Any, folder: str) -> Any:
        return CrossEncoderTrainer(
            model, arguments(work, CrossEncoderTrainingArguments, folder, precision), data,
            loss=MSELoss(model))

    found = timed(work, model, trainer, rows)
    scores = model.predict(list(zip(*prefixed(work, dev), strict=True)))
    return found | {"score": float(pearson(scores, dev["label"].to_numpy()))}


def trainer_cross(work: Work, precision: str) -> dict[str, Any]:
    """Regression by transformers' Trainer; at its best with batches of like length."""
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from pipeline.metrics import pearson

    tokenizer = AutoTokenizer.from_pretrained(work.encoder)
    model = AutoModelForSequenceClassification.from_pretrained(
        work.encoder, num_labels=1, problem_type="regression", dtype=torch.float32)

    def dataset(frame: Any) -> Any:
        made = tokenizer(*prefixed(work, frame), truncation="longest_first",
                         max_length=work.reading.max_length)
        return Dataset.from_dict(dict(made) | {"labels": (frame["label"] / 5).tolist()})

    strategy = "group_by_length" if precision == "best" else "random"

    def trainer(data: Any, folder: str) -> Any:
        return Trainer(model, arguments(work, TrainingArguments, folder, precision,
                                        train_sampling_strategy=strategy),
                       DataCollatorWithPadding(tokenizer), data)

    frame, dev = work.training_pairs(), work.dev_pairs()
    found = timed(work, model, trainer, dataset(frame))
    with tempfile.TemporaryDirectory() as folder:
        scores = trainer(None, folder).predict(dataset(dev)).predictions[:, 0]
    return found | {"score": float(pearson(scores, dev["label"].to_numpy()))}


def st_encode(work: Work, precision: str, batch: int = 32) -> dict[str, Any]:
    """`encode` in fp32, or with the weights in bf16."""
    import numpy as np
    import torch

    options = {"model_kwargs": {"dtype": torch.bfloat16 if is_bf16(work, precision)
                                else torch.float32}}
    model, texts = sentence_encoder(work, **options), work.texts[:work.sentences]
    count, prompt = TokenCount(model), work.reading.prefix or None
    model.encode(texts[:32], prompt=prompt)
    count.restart()
    began = both_clocks(device_of(work))
    found = model.encode(texts, prompt=prompt, batch_size=batch)
    ended = both_clocks(device_of(work))
    return {**passed(began, ended), "real": int(count.real), "processed": count.processed,
            "gib": peak_gib(),
            "norm": float(np.linalg.norm(found.astype(np.float32), axis=1).mean())}


def ours(task: str, precision: str) -> Callable[[Work], dict[str, Any]]:
    """One of the pipeline's own, imported when it runs."""
    def run(work: Work) -> dict[str, Any]:
        from benchmarks import ours as module

        return getattr(module, task)(work, precision)

    return run


def variants(task: str) -> dict[str, Callable[[Work], dict[str, Any]]]:
    """Who does a task, and how; the first is ours as it is."""
    found = {"ours": ours(task, "auto"), "ours, fp32": ours(task, "fp32")}
    name = "sentence-transformers"
    if task == "encode":
        return found | {f"{name}, default": partial(st_encode, precision="default"),
                        f"{name}, best": partial(st_encode, precision="best"),
                        f"{name}, best, batch 128": partial(st_encode, precision="best",
                                                            batch=128)}
    peers = {name: {"simcse": st_simcse, "cross": st_cross}[task]}
    if task == "cross":
        peers["Trainer"] = trainer_cross
    return found | {f"{who}, {how}": partial(peer, precision=how)
                    for who, peer in peers.items() for how in ("default", "best")}


def rows_of(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The table's rows; ratios are to the first variant's seconds and memory."""
    first = next(iter(found.values()))
    return [{"who": name, "seconds": row["seconds"], "processor s": row["processor"],
             "tokens/s": row["real"] / row["seconds"],
             "padding": row["processed"] / row["real"], "GiB": row["gib"], "loss": row.get("loss"),
             "dev score": row.get("score"), "time : ours": row["seconds"] / first["seconds"],
             "processor : ours": row["processor"] / first["processor"],
             "memory : ours": row["gib"] / first["gib"]} for name, row in found.items()]


def main() -> None:
    """Runs every variant of every task in turn and prints a table a task."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    parser.add_argument("--tasks", nargs="+", default=["simcse", "cross", "encode"],
                        choices=["simcse", "cross", "encode"])
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only:
        import torch

        torch.set_num_threads(asked.threads)
        (task,) = asked.tasks
        print(json.dumps(variants(task)[asked.only](from_arguments(asked, task))))
        return
    for task in asked.tasks:
        words = ["-m", "benchmarks.peers", *sys.argv[1:], "--tasks", task]
        found = alternated(words, list(variants(task)), asked.repeats, asked.threads)
        work = from_arguments(asked, task)
        size = (f"{work.sentences} sentences" if task == "encode"
                else f"{work.steps} steps of {work.batch}")
        print(table(f"{task}: {size}, {asked.threads} threads, median of {asked.repeats}", COLUMNS,
                    rows_of(found)), flush=True)


if __name__ == "__main__":
    main()
