"""A finished run's model as sentence-transformers' own folder, which needs no code of ours.

    python run.py stage=export run=runs/sts/NAME export.dir=my-model

A bi-encoder becomes a SentenceTransformer, whose vectors are those of `embed`. A cross-encoder
becomes a CrossEncoder: the same pooling, then a linear layer straight on the vector, which the
*ForSequenceClassification models lack (theirs has a dense layer and a tanh before it).
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers import AutoConfig

from pipeline.corpus import sentence_table
from pipeline.data import HIGHEST, SENTENCES
from pipeline.encoder import embed, load_encoder, pooler_option
from pipeline.errors import UserError
from pipeline.heads import PairScorer, load_scorer, raw_scores, to_labels
from pipeline.hub import from_hub, quiet
from pipeline.metrics import normalised
from pipeline.reading import recorded

CPU = torch.device("cpu")  # in fp32, where the two libraries differ by rounding alone
LEAST_COSINE = 0.99999
LARGEST_GAP = 0.005  # of scores from 0 to 5
Program = Callable[[list], np.ndarray]  # vectors of sentences or scores of pairs


def require_package() -> None:
    """Refuses to start without sentence-transformers; keeps it from talking of prompts."""
    try:
        import sentence_transformers  # noqa: F401
    except ImportError:
        raise UserError("stage=export: expected the package sentence-transformers, got none: "
                        ".venv/bin/python -m pip install 'sentence-transformers>=6.0'") from None
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


def body(folder: Path) -> list[nn.Module]:
    """Transformer and pooling modules that make the encoder's sentence vector (N, d)."""
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

    quiet()
    reading, config = recorded(str(folder)), from_hub(AutoConfig, str(folder))
    width, layers = config.hidden_size, config.num_hidden_layers
    # Our encoder gives token types exactly where there are two; a RoBERTa fails on the second.
    types = ["token_type_ids"] if getattr(config, "type_vocab_size", 0) > 1 else []
    both = reading.pooling == "first_last_mean"
    transformer = Transformer(
        str(folder), max_seq_length=reading.max_length,
        model_kwargs=pooler_option(str(folder), config, reading.pooling),
        processor_kwargs={"model_input_names": ["input_ids", *types, "attention_mask"]},
        config_kwargs={"output_hidden_states": True} if both else {})
    if reading.pooling == "pooler":
        dense = transformer.model.pooler.dense
        return [transformer, Pooling(width, "cls"),
                Dense(width, width, activation_function=nn.Tanh(),
                      init_weight=dense.weight.detach(), init_bias=dense.bias.detach())]
    if both:
        weights = torch.zeros(layers)
        weights[[0, -1]] = 1  # of layers 1 … last
        return [transformer, WeightedLayerPooling(width, layers, 1, nn.Parameter(weights)),
                Pooling(width, "mean")]
    return [transformer, Pooling(width, reading.pooling)]


def sentence_transformer(folder: Path) -> Any:
    """A model's encoder as a SentenceTransformer, whose default prompt is the encoder's prefix."""
    from sentence_transformers import SentenceTransformer

    prefix = recorded(str(folder)).prefix
    prompts = {"prompts": {"query": prefix, "document": prefix},
               "default_prompt_name": "query"} if prefix else {}
    return SentenceTransformer(modules=body(folder), device="cpu", similarity_fn_name="cosine",
                               **prompts)


def cross_encoder(folder: Path) -> Any:
    """The cross head of a model's folder as a CrossEncoder whose scores are labels, 0 to 5."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense

    scorer = load_scorer(folder)
    refuse_what_it_cannot_say(scorer)
    # hardsigmoid(x) is x/6 + 1/2 clipped to 0–1: the clipping of our scores, as a torch module.
    weight = 6 * scorer.scale * scorer.linear.weight.detach()
    bias = 6 * (scorer.scale * scorer.linear.bias.detach() + scorer.shift) - 3
    return CrossEncoder(device="cpu", activation_fn=nn.Identity(), modules=[
        *body(folder),
        Dense(scorer.encoder.width, 1, activation_function=nn.Hardsigmoid(), init_weight=weight,
              init_bias=bias),
        Dense(1, 1, bias=False, activation_function=None, init_weight=torch.tensor([[HIGHEST]]),
              module_output_name="scores")])


def refuse_what_it_cannot_say(scorer: PairScorer) -> None:
    """A CrossEncoder reads a pair once, with a prompt before its first sentence only."""
    if scorer.reading.both_orders:
        raise UserError("run: expected a model that reads a pair once, as a CrossEncoder does, got "
                        "one with sts.both_orders=true")
    if scorer.encoder.reading.prefix:
        raise UserError("run: expected a cross-encoder without encoder.prefix (a CrossEncoder puts "
                        "a prompt before a pair's first sentence only), got "
                        f"{scorer.encoder.reading.prefix!r}")


def run_exported(folder: Path, kind: str, texts: list) -> np.ndarray:
    """sentence-transformers' vectors of sentences (n, d), or scores of pairs (n,)."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    if kind == "cross-encoder":
        return CrossEncoder(str(folder), device="cpu").predict(texts, show_progress_bar=False)
    return SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)


def vectors_agree(model: Path, frame: pd.DataFrame, by: str, program: Program) -> float:
    """The least cosine between our vectors and another program's; refuses it below 0.99999."""
    texts = sentence_table(frame)[0]
    encoder = load_encoder(str(model))
    ours = normalised(embed(encoder, encoder.tokens(texts), CPU))
    least = float((ours * normalised(program(texts))).sum(axis=1).min())
    if not least > LEAST_COSINE:
        raise UserError(f"run: expected an encoder of which {by} makes the same vectors, got "
                        f"{encoder.backbone.config.model_type} with a cosine of {least:.6f}")
    return least


def scores_agree(model: Path, frame: pd.DataFrame, by: str, program: Program) -> float:
    """The largest gap between our scores and another program's; refuses more than 0.005."""
    scorer = load_scorer(model)
    plain = frame.assign(source="")  # a source's token stands in the text that it is given
    ours = to_labels(scorer, raw_scores(scorer, scorer.pairs(plain), CPU))
    theirs = program(list(plain[SENTENCES].itertuples(index=False, name=None)))
    gap = float(np.abs(ours - theirs).max())
    if not gap < LARGEST_GAP:
        raise UserError(f"run: expected an encoder of which {by} makes the same scores, got "
                        f"{scorer.encoder.backbone.config.model_type} with a difference of "
                        f"{gap:.3f}")
    return gap
