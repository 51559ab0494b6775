"""Public data in their original formats and as the Hub has them, in the competition's layout.

python -m pytest tests/test_fetch.py
"""

import json
from pathlib import Path

import datasets
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from toy import done, read_csv

from pipeline.data import read_competition
from pipeline.nli import read_nli

HEADER = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2"
LINES = {
    "train": ['main-captions\tMSRvid\t2012test\t1\t5.0\t비행기가 "이륙한다\t비행기가, 뜬다',
              'main-news\theadlines\t2013\t2\t2.9\t"\t그는 "왔다"'],
    "dev": ["main-forums\tdeft\t2014\t7\t0.0\t사람이 걷는다\t고양이가 잔다"],
    "test": ["main-captions\tMSRvid\t2012test\t24\t2.5\t한 소녀\t두 소녀",
             "main-captions\tMSRvid\t2012test\t33\t3.0\t개가 뛴다\t개가 달린다"]}
INTS = {"entailment": 0, "neutral": 1, "contradiction": 2}
NLI = [("비가 온다", "땅이 젖는다", "entailment"), ('그는 "왔다', "눈이 온다", "contradiction"),
       ("해가 뜬다", "춥다", "neutral")]


def korsts(folder: Path) -> list[Path]:
    """KorSTS as Kakao Brain publishes it: tab-separated, without quoting."""
    folder.mkdir()
    for part, lines in LINES.items():
        (folder / f"sts-{part}.tsv").write_text("\n".join([HEADER, *lines]) + "\n", "utf-8")
    return sorted(folder.glob("*.tsv"))


def klue_row(place: int, left: str, right: str, label: float) -> dict:
    """A row of KLUE-STS."""
    return {"guid": f"klue-sts-v1_train_{place:05d}", "source": "airbnb-rtt", "sentence1": left,
            "sentence2": right, "labels": {"label": label, "real-label": label + 0.014,
                                           "binary-label": int(label >= 3)}}


def klue(n: int = 60) -> tuple[list[dict], list[dict]]:
    """KLUE-STS's train, in which every third pair shares a sentence with the next, and dev."""
    train = [klue_row(place, f"문장 {place + (place % 3 == 1)}", f'짝 "{place}', place % 51 / 10)
             for place in range(n)]
    dev = [klue_row(n + place, f"시험 {place}", f"물음 {place}", label)
           for place, label in enumerate((0.0, 2.9, 3.0))]
    return train, dev


def klue_files(folder: Path) -> list[Path]:
    """KLUE-STS as KLUE publishes it: JSON lists."""
    folder.mkdir()
    for part, rows in zip(("train", "dev"), klue(), strict=True):
        text = json.dumps(rows, ensure_ascii=False, indent=1)
        (folder / f"klue-sts-v1.1_{part}.json").write_text(text, "utf-8")
    return sorted(folder.glob("*.json"))


def files(paths: list[Path]) -> str:
    """The key that names local copies."""
    return f"fetch.files=[{','.join(map(str, paths))}]"


def assert_klue(folder: Path) -> None:
    """The layout of KLUE-STS: its dev is test, a tenth of train is dev and shares no sentence."""
    sets = read_competition(folder)
    assert sets.notes == []
    assert sets.test["sentence_1"].tolist() == ["시험 0", "시험 1", "시험 2"]
    assert len(sets.train) + len(sets.dev) == 60
    assert 4 <= len(sets.dev) <= 6
    sides = [set(frame[["sentence_1", "sentence_2"]].to_numpy().ravel())
             for frame in (sets.train, sets.dev)]
    assert not sides[0] & sides[1]
    both = pd.concat([sets.train, sets.dev])
    assert set(both["source"]) == {"airbnb-rtt"}
    place = both["sentence_2"].str.extract(r'짝 "(\d+)')[0].astype(int)
    assert both["label"].tolist() == [number % 51 / 10 for number in place]
    assert (both["binary-label"] == (both["label"] >= 3)).all()
    hidden = read_csv(folder / "test_labels.csv")
    assert hidden["label"].tolist() == [0.0, 2.9, 3.0]
    assert hidden["id"].tolist() == sets.order


def test_korsts_files(command, tmp_path):
    """Every column and cell of all five files; read_competition accepts them."""
    done(command, "stage=fetch", "fetch.name=korsts", files(korsts(tmp_path / "raw")))
    folder = tmp_path / "data/korsts"
    assert {path.name for path in folder.iterdir()} == {
        "train.csv", "dev.csv", "test.csv", "test_labels.csv", "sample_submission.csv"}
    train, dev, test, hidden, sample = (read_csv(folder / f"{name}.csv") for name in (
        "train", "dev", "test", "test_labels", "sample_submission"))
    columns = ["id", "source", "sentence_1", "sentence_2", "label", "binary-label"]
    assert train.columns.tolist() == dev.columns.tolist() == columns
    assert train.drop(columns="id").to_numpy().tolist() == [
        ["main-captions", '비행기가 "이륙한다', "비행기가, 뜬다", 5.0, 1.0],
        ["main-news", '"', '그는 "왔다"', 2.9, 0.0]]
    assert dev["sentence_1"].tolist() == ["사람이 걷는다"]
    assert test.columns.tolist() == columns[:4]
    assert hidden.columns.tolist() == ["id", "label"]
    assert hidden["label"].tolist() == [2.5, 3.0]
    assert sample.columns.tolist() == ["id", "target"]
    assert test["id"].tolist() == hidden["id"].tolist() == sample["id"].tolist()
    ids = pd.concat([train["id"], dev["id"], test["id"]])
    assert ids.is_unique
    sets = read_competition(folder)
    assert [len(frame) for frame in (sets.train, sets.dev, sets.test)] == [2, 1, 2]
    assert sets.notes == []


def test_klue_sts_files(command, tmp_path, caplog):
    """Read by read_competition; the command says origin, sizes, licence and how to use it."""
    done(command, "stage=fetch", "fetch.name=klue-sts", "fetch.dir=here",
         files(klue_files(tmp_path / "raw")))
    assert_klue(tmp_path / "here")
    assert "licence CC BY-SA 4.0, the KLUE team" in caplog.text
    assert "here/test.csv: 3 rows" in caplog.text
    assert "use it with data.dir=here" in caplog.text


def test_seed_draws_klues_dev(command, tmp_path):
    """Another seed holds out other pairs, the same one the same."""
    given = files(klue_files(tmp_path / "raw"))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done(command, "stage=fetch", given, f"fetch.dir={name}", f"seed={seed}")
    one, again, other = (read_csv(tmp_path / name / "dev.csv")["id"].tolist() for name in "abc")
    assert one == again
    assert set(one) != set(other)


def nli_rows(folder: Path) -> tuple[list, list]:
    """What read_nli finds, as lists."""
    return tuple(part[["premise", "hypothesis", "label"]].to_numpy().tolist()
                 for part in read_nli(folder))


EXPECTED = [[premise, hypothesis, INTS[label]] for premise, hypothesis, label in NLI]


def test_nli_files(command, tmp_path):
    """KorNLI's TSV and KLUE-NLI's JSON; several files of a part come together, `-` left out."""
    lines = ["sentence1\tsentence2\tgold_label", *["\t".join(row) for row in NLI], "가\t나\t-"]
    names = ("snli_1.0_train.ko.tsv", "multinli.train.ko.tsv", "xnli.dev.ko.tsv")
    for name, kept in zip(names, (lines[:3], lines[:1] + lines[3:], lines), strict=True):
        (tmp_path / name).write_text("\n".join(kept) + "\n", "utf-8")
    done(command, "stage=fetch", "fetch.name=kornli", files([tmp_path / name for name in names]))
    assert nli_rows(tmp_path / "data/kornli") == (EXPECTED, EXPECTED)
    rows = [{"guid": "g", "source": "wikitree", "premise": premise, "hypothesis": hypothesis,
             "gold_label": label, "author": "neutral"} for premise, hypothesis, label in NLI]
    for part in ("train", "dev"):
        (tmp_path / f"klue-nli-v1.1_{part}.json").write_text(json.dumps(rows), "utf-8")
    done(command, "stage=fetch", "fetch.name=klue-nli", "fetch.dir=data/nli",
         files([tmp_path / f"klue-nli-v1.1_{part}.json" for part in ("train", "dev")]))
    assert nli_rows(tmp_path / "data/nli") == (EXPECTED, EXPECTED)


def nli_set(hypothesis: str = "hypothesis") -> Dataset:
    """Inference pairs with the Hub's class numbers."""
    features = Features({"premise": Value("string"), hypothesis: Value("string"),
                         "label": ClassLabel(names=list(INTS))})
    return Dataset.from_dict({"premise": [row[0] for row in NLI],
                              hypothesis: [row[1] for row in NLI],
                              "label": [INTS[row[2]] for row in NLI]}, features=features)


def hub(path: str, name: str | None = None, **options: object) -> DatasetDict:
    """What the Hub has under these names, in memory: load_dataset without a network."""
    if (path, name) == ("klue/klue", "sts"):
        train, dev = klue()
        return DatasetDict(train=Dataset.from_list(train), validation=Dataset.from_list(dev))
    if (path, name) == ("klue/klue", "nli"):
        return DatasetDict(train=nli_set(), validation=nli_set())
    if path == "dkoterwa/kor-sts":
        parts = {part: [dict(zip(HEADER.split("\t"), line.split("\t"), strict=True))
                        for line in lines] for part, lines in LINES.items()}
        frames = {part: pd.DataFrame(rows).astype({"score": float})
                  for part, rows in parts.items()}
        return DatasetDict(train=Dataset.from_pandas(frames["train"]), test=Dataset.from_pandas(
            frames["test"]), validation=Dataset.from_pandas(frames["dev"]))
    assert path == "kakaobrain/kor_nli", (path, name)
    if name == "xnli":
        return DatasetDict(validation=nli_set(), test=nli_set())
    return DatasetDict(train=nli_set())  # snli and multi_nli have no other part


@pytest.mark.parametrize("name", ["klue-sts", "korsts", "klue-nli", "kornli"])
def test_from_the_hub(command, tmp_path, monkeypatch, name):
    """Each set in the Hub's columns becomes a layout that the training stages read."""
    monkeypatch.setattr(datasets, "load_dataset", hub)
    done(command, "stage=fetch", f"fetch.name={name}")
    folder = tmp_path / "data" / name
    if name.endswith("nli"):
        assert nli_rows(folder) == (EXPECTED, EXPECTED)
    elif name == "klue-sts":
        assert_klue(folder)
    else:
        sets = read_competition(folder)
        assert sets.train["label"].tolist() == [5.0, 2.9]
        assert sets.test["sentence_2"].tolist() == ["두 소녀", "개가 달린다"]
        assert read_csv(folder / "test_labels.csv")["label"].tolist() == [2.5, 3.0]
