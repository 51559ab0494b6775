"""Inference pairs as they are published, their triplets, and the weights of a contrastive batch.

python -m pytest tests/test_nli.py
"""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.errors import UserError
from pipeline.losses import info_nce
from pipeline.nli import log_weights, read_file, read_nli, triplets

NO = -np.inf
KLUE = {"guid": "klue-nli-v1_train_00000", "source": "NSMC", "premise": "비가 온다",
        "hypothesis": "땅이 젖는다", "gold_label": "neutral", "author": "neutral",
        "label2": "neutral"}


def rows_of(frame: pd.DataFrame) -> list[list]:
    """A frame's rows as lists."""
    return frame[["premise", "hypothesis", "label"]].to_numpy().tolist()


def test_csv(tmp_path):
    """Columns in any order, more of them, quotes as CSV has them, and a BOM."""
    path = tmp_path / "train.csv"
    path.write_text('label,id,hypothesis,premise\nentailment,1,"가, 나",다\n'
                    'contradiction,2,"""라""",마\n', encoding="utf-8-sig")
    assert rows_of(read_file(path)) == [["다", "가, 나", 0], ["마", '"라"', 2]]


def test_tsv_of_kornli(tmp_path):
    """Quotes are ordinary characters, a lone one too; `-` is left out, its row counted."""
    path = tmp_path / "snli_1.0_train.ko.tsv"
    path.write_bytes('sentence1\tsentence2\tgold_label\r\n"가\t나" 다\tneutral\r\n'
                     '라\t마\t-\r\n\r\n그는 "왔다"\t"\tentailment\r\n'.encode())
    assert rows_of(read_file(path)) == [['"가', '나" 다', 1], ['그는 "왔다"', '"', 0]]


def test_json_of_klue(tmp_path):
    """gold_label is the label; guid, source and the annotators' labels do not matter."""
    path = tmp_path / "klue-nli-v1.1_dev.json"
    more = [KLUE | {"gold_label": "-"}, KLUE | {"gold_label": "contradiction", "premise": 'A "B'}]
    path.write_text(json.dumps([KLUE, *more]), encoding="utf-8")
    assert rows_of(read_file(path)) == [["비가 온다", "땅이 젖는다", 1], ['A "B', "땅이 젖는다", 2]]


def test_text_is_nfc(tmp_path):
    """Decomposed letters are composed, also where JSON spells them as escapes."""
    apart = "\u1100\u1161"
    csv, tsv, js = (tmp_path / f"train.{kind}" for kind in ("csv", "tsv", "json"))
    csv.write_text(f"premise,hypothesis,label\n{apart},{apart},neutral\n", encoding="utf-8")
    tsv.write_text(f"premise\thypothesis\tlabel\n{apart}\t{apart}\tneutral\n", encoding="utf-8")
    js.write_text(json.dumps([KLUE | {"premise": apart, "hypothesis": apart}]), encoding="utf-8")
    for path in (csv, tsv, js):
        assert rows_of(read_file(path)) == [["가", "가", 1]], path.name


HEAD = "premise\thypothesis\tlabel\n"
REFUSED = {
    "no column": ("train.csv", "premise,label\n가,neutral\n",
                  "row 1: expected column hypothesis, got premise, label"),
    "no columns": ("train.tsv", "a\tb\n1\t2\n",
                   "row 1: expected columns premise, hypothesis, label, got a, b"),
    "label": ("train.csv", "premise,hypothesis,label\n가,나,neutral\n가,다,-\n가,라,maybe\n",
              "row 4: expected label to be one of entailment, neutral, contradiction, got 'maybe'"),
    "label in capitals": ("train.tsv", f"{HEAD}가\t나\tNeutral\n", "row 2: expected label to be "
                          "one of entailment, neutral, contradiction, got 'Neutral'"),
    "empty": ("train.tsv", f"{HEAD}가\t나\t-\n\n가\t \tneutral\n",
              "row 4: expected text in hypothesis, got ' '"),
    "empty premise": ("train.csv", "premise,hypothesis,label\n,나,neutral\n",
                      "row 2: expected text in premise, got ''"),
    "short": ("train.tsv", f"{HEAD}가\t나\tneutral\n가\t나\n",
              "row 3: expected 3 cells as in the header, got 2"),
    "long": ("train.tsv", f"{HEAD}가\t나\tneutral\tx\n",
             "row 2: expected 3 cells as in the header, got 4"),
    "carriage return": ("train.tsv", f"{HEAD}가\t나\tneutral\n가\r나\t다\tneutral\n", "row 3: "),
    "no rows": ("train.tsv", HEAD, "row 2: expected rows under the header, got none"),
    "no list": ("train.json", json.dumps(KLUE), "expected a JSON list of objects"),
    "a list of texts": ("train.json", '["가"]', "expected a JSON list of objects"),
    "no JSON": ("train.json", "[{]", "expected JSON, got: "),
    "JSON label": ("train.json", json.dumps([KLUE, KLUE | {"gold_label": "0"}]), "row 2: expected "
                   "label to be one of entailment, neutral, contradiction, got '0'"),
    "JSON empty": ("train.json", json.dumps([KLUE, KLUE | {"hypothesis": ""}]),
                   "row 2: expected text in hypothesis, got ''"),
    "JSON null": ("train.json", json.dumps([KLUE, KLUE | {"hypothesis": None}]),
                  "row 2: expected text in hypothesis, got "),
    "JSON list": ("train.json", json.dumps([KLUE, KLUE | {"hypothesis": ["가"]}]),
                  "row 2: expected text in hypothesis, got ['\\uac00']"),
    "JSON number": ("train.json", json.dumps([KLUE, KLUE | {"premise": 3}]),
                    "row 2: expected text in premise, got "),
    "half a character": ("train.json", json.dumps([KLUE, KLUE | {"premise": "가\ud800"}]),
                         "row 2: expected text in premise, got '\\uac00\\ud800'"),
    "JSON with two labels": ("train.json", json.dumps([KLUE | {"label": "neutral"}]),
                             "row 1: expected one column of label and gold_label, got both"),
    "two premises": ("train.csv", "premise,sentence1,hypothesis,label\n가,나,다,neutral\n",
                     "row 1: expected one column of premise and sentence1, got both"),
    "premise twice": ("train.tsv", "premise\tpremise\thypothesis\tlabel\n가\t나\t다\tneutral\n",
                      "row 1: expected every column once, got premise again"),
    "space in a name": ("train.csv", "premise, hypothesis,label\n가,나,neutral\n",
                        "row 1: expected a column's name without spaces around it, got "
                        "' hypothesis'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_file(tmp_path, case):
    """The file, the row, expected and got."""
    name, text, message = REFUSED[case]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(UserError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_parts_by_name(tmp_path):
    """Train and dev of all kinds come together, each pair once; other files are not read."""
    (tmp_path / "snli_train.tsv").write_text(f"{HEAD}가\t나\tneutral\n가\t나\tneutral\n")
    (tmp_path / "klue_train.json").write_text(json.dumps([KLUE]))
    (tmp_path / "a-dev.csv").write_text("premise,hypothesis,label\n바,사,entailment\n")
    (tmp_path / "xnli_test.tsv").write_text("no\n")
    (tmp_path / "train.txt").write_text("no\n")
    train, dev = read_nli(tmp_path)
    assert rows_of(train) == [["비가 온다", "땅이 젖는다", 1], ["가", "나", 1]]
    assert rows_of(dev) == [["바", "사", 0]]


@pytest.mark.parametrize(("there", "missing"), [("dev.csv", "train"), ("train.csv", "dev")])
def test_part_without_files(tmp_path, there, missing):
    """A folder without one of the parts is refused with what it holds."""
    (tmp_path / there).write_text("premise,hypothesis,label\n바,사,entailment\n")
    with pytest.raises(UserError) as caught:
        read_nli(tmp_path)
    assert str(caught.value) == (f"data.nli_dir={tmp_path}: expected a .csv, .tsv or .json with "
                                 f"{missing!r} in its name, got {there}")
    with pytest.raises(UserError, match=r"with 'train' in its name, got no files"):
        read_nli(tmp_path / "none")


def test_triplets():
    """By hand: contradictions are dealt in turn, −1 without one, neutral ones are left out."""
    frame = pd.DataFrame([
        ("P", "e1", 0), ("P", "c1", 2), ("P", "n", 1), ("P", "e2", 0), ("Q", "e3", 0),
        ("P", "c2", 2), ("P", "e4", 0), ("R", "c1", 2), ("S", "P", 0), ("S", "c1", 2),
        ("S", "e1", 0)], columns=["premise", "hypothesis", "label"])
    texts, table = triplets(frame)
    assert len(texts) == len(set(texts))
    assert set(texts) == set(frame["premise"]) | set(frame["hypothesis"])
    named = [[texts[place] if place >= 0 else None for place in row] for row in table]
    assert named == [["P", "e1", "c1"], ["P", "e2", "c2"], ["Q", "e3", None], ["P", "e4", "c1"],
                     ["S", "P", "c1"], ["S", "e1", "c1"]]


WEIGHTS = {
    "nothing special": ([[0, 1, 2], [3, 4, 5]], 2, [[0, 0, math.log(2), 0],
                                                    [0, 0, 0, math.log(2)]]),
    "weight 0": ([[0, 1, 2], [3, 4, 5]], 0, [[0, 0, NO, 0], [0, 0, 0, NO]]),
    "no contradiction": ([[0, 1, -1], [3, 4, 5]], 2, [[0, 0, 0], [0, 0, math.log(2)]]),
    "none at all": ([[0, 1, -1], [3, 4, -1]], 2, [[0, 0], [0, 0]]),
    "same premise": ([[0, 1, -1], [0, 2, -1], [3, 4, -1]], 1, [[0, NO, 0], [NO, 0, 0], [0, 0, 0]]),
    "same positive": ([[0, 1, -1], [2, 1, -1], [3, 4, -1]], 1,
                      [[0, NO, 0], [NO, 0, 0], [0, 0, 0]]),
    # row 1's positive is row 0's premise: for row 0 it is no negative, for row 1 it is its own
    "positive is a premise": ([[0, 1, -1], [2, 0, -1]], 1, [[0, NO], [0, 0]]),
    # row 1's contradiction is row 0's positive and stays one for itself
    "negative is a positive": ([[0, 1, 5], [2, 3, 1]], 2, [[0, 0, math.log(2), NO],
                                                           [0, 0, 0, math.log(2)]]),
    "negative is a premise": ([[0, 1, 5], [2, 3, 0]], 1, [[0, 0, 0, NO], [0, 0, 0, 0]]),
    # sentence 2 is entailed by premise 0 (row 1), so it is no negative of row 0 either
    "negative entailed in another row": ([[0, 1, -1], [0, 2, -1], [3, 4, 2]], 1,
                                         [[0, NO, 0, NO], [NO, 0, 0, NO], [0, 0, 0, 0]]),
    "positive entailed in another row": ([[0, 1, -1], [0, 2, -1], [3, 2, -1]], 1,
                                         [[0, NO, NO], [NO, 0, NO], [0, NO, 0]]),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_log_weights(case):
    """By hand: what is in truth a positive does not count, the own contradiction does as asked."""
    rows, weight, expected = WEIGHTS[case]
    found = log_weights(np.array(rows), weight)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_loss_of_a_batch(weight):
    """info_nce with the weights is Σ −log(e^own / Σ w·e^other), written out with loops."""
    rows = np.array([[0, 1, 2], [0, 3, -1], [4, 5, 10], [6, 0, 7], [8, 9, 7], [11, 12, 9]])
    left_out = {(0, "p", 1), (1, "p", 0), (0, "p", 3), (1, "p", 3), (4, "n", 5)}
    vectors = torch.randn(13, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = (vectors / vectors.norm(dim=1, keepdim=True)).tolist()

    def term(one: int, other: int) -> float:
        return math.exp(sum(a * b for a, b in zip(unit[one], unit[other], strict=True)) / 0.1)

    losses = []
    for i, (premise, positive, _) in enumerate(rows):
        total = 0.0
        for j, (_, other, negative) in enumerate(rows):
            if (i, "p", j) not in left_out:
                total += term(premise, other)
            if negative >= 0 and (i, "n", j) not in left_out:
                total += (weight if i == j else 1.0) * term(premise, negative)
        losses.append(-math.log(term(premise, positive) / total))
    candidates = np.concatenate([rows[:, 1], rows[rows[:, 2] >= 0, 2]])
    found = info_nce(vectors[rows[:, 0]], vectors[candidates], 0.1,
                     torch.from_numpy(log_weights(rows, weight)))
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-9)
