"""The model card of an exported folder: what it is, from which data and recipe, how good.

    python run.py stage=export run=runs/sts/NAME export.dir=my-model
"""

from dataclasses import dataclass
from typing import Any

KINDS = {"sentence-transformers": ("SentenceTransformer", "sentence-similarity"),
         "cross-encoder": ("CrossEncoder", "text-ranking")}
LICENCE = ("Whoever publishes this model chooses its licence, within those of the base model and "
           "of the data; this card states none.")


@dataclass
class Card:
    """What the card says; stages are those of the chain, first to last."""

    name: str
    kind: str  # one of KINDS
    base_model: str
    hub_id: str  # of the base model; empty where it was a folder
    is_trial: bool
    reading: dict[str, Any]  # pooling, prefix, max_length
    data: list[dict[str, str]]  # set, rows, sources, sha256
    stages: list[str]
    settings: dict[str, Any]  # the keys that differ from their defaults
    scores: list[tuple[str, dict]]  # set and its metrics, or a mean with n
    notes: list[str]
    versions: dict[str, str]


def text(card: Card) -> str:
    """The card's Markdown with the Hub's metadata above it."""
    from huggingface_hub import ModelCardData

    _, task = KINDS[card.kind]
    head = ModelCardData(language="ko", library_name="sentence-transformers", pipeline_tag=task,
                         tags=[card.kind, "sts", "korean"],
                         base_model=card.hub_id or None).to_yaml()
    parts = [f"# {plain(card.name)}", opening(card), "## How to load it", loading(card),
             "## Data", table(["set", "rows", "sources", "SHA-256"], [
                 [row[name] for name in ("set", "rows", "sources", "sha256")]
                 for row in card.data]),
             "## Recipe", f"Stages: {' → '.join(card.stages)}. Keys that differ from the "
             "pipeline's defaults:", table(["key", "value"], [
                 [name, repr(value) if isinstance(value, str) else value]
                 for name, value in card.settings.items()]),
             "Versions: " + ", ".join(f"{name} {value}" for name, value in card.versions.items())
             + ".", "## Scores", scores(card), "## Licence", LICENCE]
    return f"---\n{head.strip()}\n---\n\n" + "\n\n".join(parts) + "\n"


def opening(card: Card) -> str:
    """What the model is, in a paragraph."""
    what = ("A cross-encoder that reads two Korean sentences at once and says how alike they are, "
            "from 0 (unrelated) to 5 (the same)" if card.kind == "cross-encoder" else
            "A Korean sentence encoder: the cosine of two sentences' vectors says how alike they "
            "are")
    reading = card.reading
    words = [f"{what}.", f"It starts from {plain(card.base_model)}; pooling {reading['pooling']}, "
             f"at most {reading['max_length']} tokens"
             + (f", with the default prompt {plain(repr(reading['prefix']))} before every sentence."
                if reading["prefix"] else ", without a prompt."),
             "It was trained on text in Unicode's NFC form."]
    if card.is_trial:
        words.append("**A trial: it was trained on the pipeline's bundled sample.**")
    return "\n".join([*words, *(f"\n- {plain(note)}" for note in card.notes)])


def loading(card: Card) -> str:
    """The lines of Python that load it; no remote code is needed."""
    name, _ = KINDS[card.kind]
    use = ('scores = model.predict([("문장 하나", "다른 문장")])  # 0 to 5'
           if card.kind == "cross-encoder" else
           'vectors = model.encode(["문장 하나", "다른 문장"])\n'
           "cosine = model.similarity(vectors, vectors)[0, 1]")
    return (f"```python\nfrom sentence_transformers import {name}  # 6.0 or newer\n\n"
            f'model = {name}("FOLDER_OR_USER/NAME")\n{use}\n```')


def scores(card: Card) -> str:
    """A table of the scores with their 95% bootstrap intervals."""
    rows = []
    for name, found in card.scores:
        for metric in ("pearson", "spearman", "accuracy"):
            if metric in found:
                value = found[metric]
                value = value if isinstance(value, dict) else {"value": value}
                low, high = value.get("low"), value.get("high")
                interval = "" if low is None or high is None else f"{low:.4f} – {high:.4f}"
                shown = "undefined" if value["value"] is None else f"{value['value']:.4f}"
                rows.append([name, metric, shown, interval, found["n"]])
    return table(["set", "score", "value", "95% interval", "pairs"], rows)


def table(names: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table; a cell's bars and line ends are made harmless."""
    lines = [names, ["---"] * len(names), *rows] if rows else [["none"]]
    return "\n".join("| " + " | ".join(plain(str(cell)) for cell in line) + " |" for line in lines)


def plain(words: str) -> str:
    """Text of the user's that means nothing in Markdown or HTML."""
    return (" ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;")
            .replace("|", "\\|").replace("`", "\\`"))
