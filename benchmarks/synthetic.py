"""Encoders with random weights and random sentences, for sizes that no bundled data has.

    python -m benchmarks.synthetic sentences FILE 1000000

A sentence's words are `w0 w1 …`, a token each, so that its length in tokens is what was asked for.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as RoBERTa has them
VOCABULARY = 500  # of what the command line makes
BLOCK = 50_000  # rows made at a time
OTHER = 10  # seeds from here on: no sentence of the competition's comes again


def make_encoder(folder: Path, vocabulary: int, width: int, layers: int, heads: int,
                 inner: int, positions: int = 514) -> None:
    """Writes a RoBERTa of this size with random weights, and a tokenizer of whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=inner, max_position_embeddings=positions,
        type_vocab_size=1, bos_token_id=0, pad_token_id=1, eos_token_id=2)
    RobertaModel(config).save_pretrained(folder)
    words = SPECIALS + [f"w{number}" for number in range(vocabulary - len(SPECIALS))]
    inside = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)},
                                        unk_token="<unk>"))
    inside.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inside.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=inside, bos_token="<s>", pad_token="<pad>", eos_token="</s>",
        unk_token="<unk>", cls_token="<s>", sep_token="</s>").save_pretrained(folder)


def lengths(n: int, tokens: int, seed: int) -> np.ndarray:
    """Words of n sentences: as short and as long as Korean ones, or all of `tokens` tokens.

    Without a fixed length they are log-normal with median 16 and quartiles 11 and 24, from 2 to 80.
    """
    if tokens:
        return np.full(n, tokens - 2)
    drawn = np.random.default_rng([seed, 1]).lognormal(np.log(16), 0.58, n)
    return drawn.round().clip(2, 80).astype(int)


def sentences(n: int, vocabulary: int, tokens: int = 0, seed: int = 0) -> list[str]:
    """n sentences of random words; tokens: the length of all, with <s> and </s>; 0: drawn."""
    sizes = lengths(n, tokens, seed)
    words = np.random.default_rng([seed, 2]).integers(0, vocabulary - len(SPECIALS), sizes.sum())
    return [" ".join(f"w{word}" for word in part)
            for part in np.split(words, np.cumsum(sizes)[:-1])]


def pairs(n: int, vocabulary: int, tokens: int = 0, seed: int = 0,
          labelled: bool = True) -> pd.DataFrame:
    """n pairs in the competition's columns."""
    texts = sentences(2 * n, vocabulary, tokens, seed)
    table = pd.DataFrame({"id": [f"s{seed}-{row}" for row in range(n)], "source": "synthetic",
                          "sentence_1": texts[:n], "sentence_2": texts[n:]})
    if labelled:
        table["label"] = np.random.default_rng([seed, 3]).uniform(0, 5, n).round(1)
    return table


def make_competition(folder: Path, vocabulary: int, train: int, dev: int, test: int,
                     tokens: int = 0) -> None:
    """Writes train.csv, dev.csv and test.csv of random pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, n) in enumerate({"train": train, "dev": dev, "test": test}.items()):
        pairs(n, vocabulary, tokens, seed, name != "test").to_csv(folder / f"{name}.csv",
                                                                  index=False)


def write_sentences(path: Path, n: int) -> None:
    """A text file of n sentences, one a line."""
    with open(path, "w", encoding="utf-8") as file:
        for start in range(0, n, BLOCK):
            part = sentences(min(BLOCK, n - start), VOCABULARY, seed=OTHER + start)
            file.write("\n".join(part) + "\n")


def write_pairs(path: Path, n: int) -> None:
    """A CSV of n pairs without labels."""
    for start in range(0, n, BLOCK):
        part = pairs(min(BLOCK, n - start), VOCABULARY, seed=OTHER + start, labelled=False)
        part.to_csv(path, mode="a" if start else "w", header=not start, index=False)


def main(kind: str, path: str, *sizes: str) -> None:
    """Writes something of a kind and of these sizes."""
    {"sentences": write_sentences, "pairs": write_pairs,
     "competition": lambda folder, *rows: make_competition(folder, VOCABULARY, *rows),
     "encoder": lambda folder: make_encoder(folder, VOCABULARY, 32, 2, 2, 64),
     }[kind](Path(path), *map(int, sizes))


if __name__ == "__main__":
    main(*sys.argv[1:])
