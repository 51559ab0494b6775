"""What stage=fetch refuses: one line, and nothing is written.

python -m pytest tests/test_fetch_refused.py
"""

import json

import datasets
import pytest
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from datasets.load import httpx
from refusal import contents, refusal
from test_fetch import files, klue_files, korsts

from pipeline.nli import read_nli


def test_folder_with_csvs(command, tmp_path, monkeypatch):
    """Nothing is overwritten, and the Hub is not asked."""
    monkeypatch.setattr(datasets, "load_dataset", None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.csv").write_text("mine\n")
    before = contents(tmp_path)
    assert refusal(command("stage=fetch", "fetch.name=korsts", "fetch.dir=data")) == (
        "fetch.dir: expected a folder without CSVs, got data, which has some")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("fault", [
    ConnectionError("Couldn't reach 'klue/klue' on the Hub (OfflineModeIsEnabled)"),
    DatasetNotFoundError("Dataset 'klue/klue' doesn't exist on the Hub or cannot be accessed."),
    RuntimeError("Dataset scripts are no longer supported, but found klue.py"),
    httpx.ConnectError("[Errno -2] Name or service not known"),
    httpx.ReadTimeout("The read operation timed out"),
    DatasetGenerationError("An error occurred while\ngenerating the dataset")],
    ids=lambda fault: type(fault).__name__)
def test_hub_out_of_reach(command, tmp_path, monkeypatch, fault):
    """The data set, the reason and the ways out, whatever the Hub's client raises; no retry."""
    asked = []

    def load_dataset(*args: object, **options: object) -> None:
        asked.append(args)
        assert len(asked) == 1
        raise fault

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    said = refusal(command("stage=fetch", "fetch.name=klue-sts"))
    assert said == (f"fetch.name=klue-sts: the Hub could not give klue/klue "
                    f"({' '.join(str(fault).split())}); ways out: fetch.files=[FILE,…] with local "
                    "copies of the original files, or HF_HOME with a filled cache")
    assert contents(tmp_path) == {}


def test_offline(command, tmp_path, monkeypatch):
    """The real client under HF_HUB_OFFLINE=1, as the tests run, ends at once."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "sets")
    monkeypatch.setattr("datasets.config.HF_MODULES_CACHE", str(tmp_path / "modules"))
    said = refusal(command("stage=fetch", "fetch.name=korsts"))
    assert said.startswith("fetch.name=korsts: the Hub could not give dkoterwa/kor-sts (")
    assert "; ways out: fetch.files=[FILE,…]" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("name", "message"), [
    ("sts-train.csv", "expected .tsv or .json files with train, dev or test in their names, got "),
    ("sts.tsv", "expected .tsv or .json files with train, dev or test in their names, got "),
    ("train-none.tsv", "expected a file, got none")])
def test_files(command, tmp_path, name, message):
    """Another kind of file, a part that the name does not tell, no file."""
    if "none" not in name:
        (tmp_path / name).write_text("x\n")
    said = refusal(command("stage=fetch", "fetch.name=korsts", files([tmp_path / name])))
    assert message in said
    assert said.count(name) == 1
    assert not (tmp_path / "data").exists()


def test_part_that_is_not_given(command, tmp_path):
    """Regression data need a train and a dev part."""
    train = [path for path in korsts(tmp_path / "raw") if "dev" not in path.name]
    said = refusal(command("stage=fetch", "fetch.name=korsts", files(train)))
    assert said == "fetch: expected a train and a dev part, got test, train"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("parts", [("test",), ("train",)])
def test_inference_part_that_is_not_given(command, tmp_path, parts):
    """Inference pairs: either what was written can be read, or the command is refused."""
    paths = [tmp_path / f"xnli.{part}.ko.tsv" for part in parts]
    for path in paths:
        path.write_text("sentence1\tsentence2\tgold_label\n가\t나\tneutral\n", "utf-8")
    result = command("stage=fetch", "fetch.name=kornli", files(paths))
    if result[0] == 0:
        assert len(read_nli(tmp_path / "data/kornli")[0]) == 1
    else:
        refusal(result)
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("name", "kind"), [
    ("klue-sts", "nli"), ("korsts", "nli"), ("klue-nli", "sts"), ("kornli", "sts")])
def test_files_of_another_set(command, tmp_path, name, kind):
    """Inference pairs for a regression set, or the reverse: one line that names the column."""
    paths = klue_files(tmp_path / "raw")
    if kind == "nli":
        rows = [{"premise": "가", "hypothesis": "나", "gold_label": "neutral"}]
        for path in paths:
            path.write_text(json.dumps(rows), "utf-8")
    said = refusal(command("stage=fetch", f"fetch.name={name}", files(paths)))
    assert "expected" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("label", "message"), [
    ("7.5", "train: row 2: expected a label from 0 to 5, got '7.5'"),
    ("abc", "train: row 2: expected a label from 0 to 5, got 'abc'"), ("", "")])
def test_labels(command, tmp_path, caplog, label, message):
    """No number, or none from 0 to 5, is refused; a row without one is left out and counted."""
    for part in ("train", "dev", "test"):
        (tmp_path / f"sts-{part}.tsv").write_text(
            "sentence1\tsentence2\tscore\n가\t나\t5.000\n다\t라\t"
            f"{label if part == 'train' else 1}\n", "utf-8")
    paths = [tmp_path / f"sts-{part}.tsv" for part in ("train", "dev", "test")]
    result = command("stage=fetch", "fetch.name=korsts", files(paths))
    if message:
        assert refusal(result) == f"fetch.name=korsts: {message}"
        assert not (tmp_path / "data").exists()
    else:
        assert result[0] == 0, result[2]
        assert "train: 1 of 2 rows have no label and are left out" in caplog.text


@pytest.mark.parametrize("labels", [None, {}, [], {"label": None}])
def test_klue_without_labels(command, tmp_path, labels):
    """KLUE's labels of another form end in one line."""
    paths = klue_files(tmp_path / "raw")
    for path in paths:
        path.write_text(json.dumps([row | {"labels": labels} for row in
                                    json.loads(path.read_text("utf-8"))]), "utf-8")
    said = refusal(command("stage=fetch", "fetch.name=klue-sts", files(paths)))
    assert "expected labels, got none" in said


@pytest.mark.parametrize("header", ["sentence1\tsentence2\tscore\tlabel",
                                    "sentence1\tsentence_1\tsentence2\tscore",
                                    "genre\tsource\tsentence1\tscore"])
def test_two_names_of_one_column(command, tmp_path, header):
    """Which of the two is meant nobody knows."""
    paths = [tmp_path / f"sts-{part}.tsv" for part in ("train", "dev")]
    for path in paths:
        path.write_text(f"{header}\n1\t2\t3\t4\n", "utf-8")
    assert "row 1: expected one column of " in refusal(
        command("stage=fetch", "fetch.name=korsts", files(paths)))


@pytest.mark.parametrize("label", ["maybe", "7", "Neutral"])
def test_unknown_inference_labels(command, tmp_path, label):
    """A misspelt label is refused; `-`, on which annotators did not agree, is left out."""
    paths = [tmp_path / f"xnli.{part}.ko.tsv" for part in ("train", "dev")]
    for path in paths:
        path.write_text("sentence1\tsentence2\tgold_label\n가\t나\t-\n가\t다\t" + label,
                        "utf-8")
    assert refusal(command("stage=fetch", "fetch.name=kornli", files(paths))) == (
        "fetch: train: row 2: expected one of entailment, neutral, contradiction or -, "
        f"got {label!r}")
