"""The model card: its metadata, numbers and texts.

python -m pytest tests/test_card.py
"""

import yaml

from pipeline.card import Card, table, text


def card(**changes):
    """A card of a small bi-encoder."""
    return text(Card(**{
        "name": "run-0123456789", "kind": "sentence-transformers", "base_model": "a/b (commit c)",
        "hub_id": "a/b", "is_trial": False,
        "reading": {"pooling": "mean", "prefix": "", "max_length": 64},
        "data": [{"set": "train", "rows": "48", "sources": "slack, nsmc", "sha256": "ab"}],
        "stages": ["simcse", "sts"], "settings": {"sts.head": "bi", "seed": 1},
        "scores": [("dev", {"n": 24, "pearson": {"value": 0.5, "low": 0.25, "high": 0.75},
                            "spearman": {"value": None, "low": None, "high": None}})],
        "notes": [], "versions": {"torch": "2.13"}} | changes))


def metadata(words):
    """The YAML above the text, as the Hub reads it."""
    _, head, _ = words.split("---\n", 2)
    return yaml.safe_load(head)


def test_metadata():
    """Language, library, task and base model; no licence, and no base model from a folder."""
    assert metadata(card()) == {
        "language": "ko", "library_name": "sentence-transformers", "base_model": "a/b",
        "pipeline_tag": "sentence-similarity", "tags": ["sentence-transformers", "sts", "korean"]}
    assert "base_model" not in metadata(card(hub_id=""))
    assert metadata(card(kind="cross-encoder"))["pipeline_tag"] == "text-ranking"


def test_numbers():
    """Scores with their intervals; what is undefined says so."""
    assert "| dev | pearson | 0.5000 | 0.2500 – 0.7500 | 24 |" in card()
    assert "| dev | spearman | undefined |  | 24 |" in card()
    assert "| train | 48 | slack, nsmc | ab |" in card()
    assert "| sts.head | 'bi' |" in card()
    assert "Stages: simcse → sts." in card()


def test_how_to_load():
    """The lines are Python, and name the class."""
    for kind, name in (("sentence-transformers", "SentenceTransformer"),
                       ("cross-encoder", "CrossEncoder")):
        lines = card(kind=kind).split("```python\n")[1].split("```")[0]
        compile(lines, "card", "exec")
        assert f'model = {name}("FOLDER_OR_USER/NAME")' in lines


def test_users_texts_are_harmless():
    """Neither HTML nor a table's bars come through from sources, prefixes or settings."""
    bad = "<script>alert(1)</script>|x\n| y"
    words = card(data=[{"set": "train", "rows": "1", "sources": bad, "sha256": "ab"}],
                 settings={"encoder.special_tokens": [bad]}, notes=[bad], base_model=bad,
                 reading={"pooling": "cls", "prefix": bad, "max_length": 8})
    assert "<script>" not in words
    assert "&lt;script>alert(1)&lt;/script>\\|x \\| y | ab |" in words


def test_an_empty_table():
    """Says that there is nothing."""
    assert table(["key", "value"], []) == "| none |"
