"""What can be seen of a pair without a model: length, overlap, numbers, negation, script, emoji."""

from itertools import pairwise

import numpy as np
import pandas as pd
import regex

from pipeline.batching import tokenise
from pipeline.corpus import sentence_table

# Rules of thumb, not a parser: 안 and 못 before a verb, -지 않-, 없-, 아니-, -지 마-, and 불가.
NEGATION = regex.compile(r"(?<!\S)(안|못)(?=\s|하|해|했|되|돼|됐|된|될|됨|가|간|갔|와|왔|먹|보|봤)"
                         r"|않|없|아니(?!메)|아닌|아닙|못하|못해|못했|지\s?(마|말)|불가|금지|절대")
NUMBER = regex.compile(r"\d+(?:[.,:]\d+)*")
ENGLISH = regex.compile(r"[A-Za-z]{2,}")
EMOJI = regex.compile(r"\p{Extended_Pictographic}|[ㄱ-ㅎㅏ-ㅣ]{2,}|[:;=]-?[)(DP]|\^\^")
OVERLAP_EDGES = [0.2, 0.4, 0.6, 0.8]


def ngrams(text: str, n: int = 2) -> set[str]:
    """The text's character n-grams, without spaces and in lower case."""
    letters = "".join(text.lower().split())
    return {letters[at:at + n] for at in range(max(1, len(letters) - n + 1))}


def overlap(first: str, other: str) -> float:
    """Jaccard similarity of two texts' character bigrams, 0 to 1."""
    one, two = ngrams(first), ngrams(other)
    return len(one & two) / len(one | two)


def features(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a pair: length (characters of both), overlap, and in words numbers, negation, script,
    emoji."""
    pairs = list(zip(frame["sentence_1"], frame["sentence_2"], strict=True))
    return pd.DataFrame({
        "length": [len(one) + len(two) for one, two in pairs],
        "overlap": [overlap(one, two) for one, two in pairs],
        "numbers": [numbers(one, two) for one, two in pairs],
        "negation": [sides(NEGATION, one, two) for one, two in pairs],
        "English": [sides(ENGLISH, one, two) for one, two in pairs],
        "emoji and ㅋㅋ": [sides(EMOJI, one, two) for one, two in pairs]})


def sides(pattern: regex.Pattern, first: str, other: str) -> str:
    """In how many of the two sentences the pattern is."""
    return ("in none", "in one", "in both")[
        bool(pattern.search(first)) + bool(pattern.search(other))]


def numbers(first: str, other: str) -> str:
    """Whether two sentences state the same numbers."""
    one, two = NUMBER.findall(first), NUMBER.findall(other)
    if not one and not two:
        return "none"
    return "the same" if sorted(one) == sorted(two) else "different"


def unknown_pieces(frame: pd.DataFrame, tokenizer: object, max_length: int) -> np.ndarray:
    """How many pieces of every pair (n,) the tokenizer does not know."""
    texts, left, right = sentence_table(frame)
    tokens = tokenise(texts, tokenizer, max_length)
    counts = np.array([int((tokens.ids(row) == tokenizer.unk_token_id).sum())
                       for row in range(len(tokens))])
    return counts[left] + counts[right]


def banded(values: np.ndarray, edges: list[float]) -> tuple[np.ndarray, list[str]]:
    """The band of every value (n,) by name, and the bands' names in order."""
    names = [f"below {edges[0]:g}",
             *(f"{low:g}–{high:g}" for low, high in pairwise(edges)), f"{edges[-1]:g} and more"]
    return np.array(names)[np.searchsorted(edges, values, side="right")], names
