"""stage=diagnose: what it writes and says of one run and of two, what it refuses, what it escapes.

python -m pytest tests/test_diagnose.py
"""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from plotly import graph_objects
from plotly.offline import get_plotlyjs
from refusal import refusal
from toy import done, files_of, only, read_csv, read_json, small

from pipeline.diagnostics.evidence import read_evidence
from pipeline.diagnostics.findings import findings
from pipeline.errors import UserError
from pipeline.files import checksums
from pipeline.runs import UNCHECKED, models, write_manifest

ATTACK = "<script>alert(1)</script> & <b>굵게</b> </script>"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Keeps the two runs that every test looks at."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def runs(command, competition, make_encoder, tmp_path, cache):
    """Two finished sts runs of two seeds on data with an attack as a sentence: their folders."""
    for name in ("train", "dev"):
        table = pd.read_csv(competition / f"{name}.csv", dtype=str, keep_default_na=False)
        table.loc[1, "sentence_1"] = ATTACK
        table.to_csv(competition / f"{name}.csv", index=False)
    if (cache / "runs").exists():
        shutil.copytree(cache / "runs", tmp_path / "runs")
    else:
        for seed in (1, 2):
            done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", f"seed={seed}",
                                              f"name=seed{seed}"))
        shutil.copytree(tmp_path / "runs", cache / "runs")
    return sorted(path.relative_to(tmp_path) for path in (tmp_path / "runs/sts").glob("seed*"))


def written_so(run: Path) -> None:
    """Has the run's manifest say that its files were written as they are now."""
    files = {name: mark for name, mark in checksums(run).items()
             if Path(name).name not in UNCHECKED and not name.endswith(".lock")}
    write_manifest(run, read_json(run / "manifest.json") | {"files": files})


class Page(HTMLParser):
    """The tags and links of a page, the texts outside scripts, and the scripts' texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.words, self.scripts, self.links = [], [], [], []
        assert text.count(get_plotlyjs()) == 1
        self.feed(text.replace(get_plotlyjs(), "plotly"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags[-1:] == ["script"] and self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)


def test_one_run(command, runs, caplog):
    """The two files, figures equal to the predictions', the table and the path on the terminal."""
    done(command, "stage=diagnose", f"run={runs[0]}")
    folder = only(runs[0].parent.parent / "diagnose")
    assert folder.name.startswith("seed1-")
    assert files_of(folder) == {"report.html", "diagnosis.json"}
    text = (folder / "diagnosis.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    found = json.loads(text)
    assert set(found) == {"runs", "rows", "whole", "ranges", "calibration", "slices", "grid",
                          "corners", "worst", "different", "wrong_labels", "leaks", "test",
                          "curves", "probes", "findings"}
    table = read_csv(runs[0] / "predictions/dev.csv")
    errors = table["prediction"] - table["label"]
    inside = table["label"] < 1
    first = found["ranges"][0]
    assert first["n"] == inside.sum()
    assert first["few"]
    assert first["runs"][0]["mae"]["value"] == pytest.approx(errors[inside].abs().mean())
    assert found["worst"][0]["id"] == table["id"][errors.abs().idxmax()]
    assert len(found["worst"]) == len(table)
    assert found["different"] == []
    assert [part["stage"] for part in found["curves"][0]] == ["sts"]
    assert found["rows"] == {"train": 48, "dev": 24, "test": 16}
    assert [row["n"] for row in found["test"]["expected"][0]] == [16, 8]
    assert all(sum(shares) == pytest.approx(1)
               for shares in found["test"]["distributions"]["shares"].values())
    assert f"report: runs/diagnose/{folder.name}/report.html" in caplog.text
    assert (folder / "report.html").resolve().as_uri() in caplog.text
    assert f"{first['runs'][0]['mae']['value']:.3f} [" in caplog.text
    assert found["findings"]
    assert all(part["sentence"] in caplog.text for part in found["findings"])
    look_at_page((folder / "report.html").read_text(encoding="utf-8"))


def look_at_page(text: str) -> None:
    """One plotly, no outside address, every anchor there; a sentence is text wherever it stands."""
    page = Page(text)
    assert len(page.scripts) == 3
    assert page.scripts[1] == "plotly"
    content = json.loads(page.scripts[0])
    assert all(link.startswith(("#", "data:")) for link in page.links)
    names = set(re.findall(r'<section id="([^"]+)"', text))
    assert {link[1:] for link in page.links if link.startswith("#")} <= names
    assert set(re.findall(r'data-chart="([^"]+)"', text)) == set(content["charts"])
    assert text.count("alert(1)") > 1
    assert "<script>alert" not in text
    assert "<b>굵게" not in text
    assert ATTACK in page.words
    assert sum(pair["sentence_1"] == ATTACK for pair in content["pairs"]) == 1


def test_two_runs(command, runs):
    """Paired differences by range and over all, the pairs on which they differ, valid charts."""
    done(command, "stage=diagnose", f"runs=[{runs[0]},{runs[1]}]")
    folder = only(runs[0].parent.parent / "diagnose")
    assert folder.name.startswith("seed1-and-seed2-")
    found = read_json(folder / "diagnosis.json")
    one, two = (read_csv(run / "predictions/dev.csv") for run in runs)
    worse = (two["prediction"] - two["label"]).abs() - (one["prediction"] - one["label"]).abs()
    inside = one["label"] >= 4
    assert found["ranges"][4]["difference"]["value"] == pytest.approx(worse[inside].mean())
    assert found["whole"]["difference"]["value"] == pytest.approx(worse.mean())
    apart = (two["prediction"] - one["prediction"]).abs()
    assert found["different"][0]["id"] == one["id"][apart.idxmax()]
    assert found["runs"][1]["seed"] == 2
    assert found["findings"][0]["sentence"].startswith("seed2 is ")
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert "Where the two runs differ most" in page.words
    variables = set(re.findall(r"var\(--([\w-]+)\)", page.scripts[0]))
    assert variables <= set(re.findall(r"--([\w-]+):", "".join(page.words)))
    content = json.loads(re.sub(r"var\(--[\w-]+\)", "#123456", page.scripts[0]))
    assert len(content["charts"]) > 12
    for figure in content["charts"].values():
        graph_objects.Figure(figure)  # plotly's own schema


def test_out_of_fold_predictions_judge_train(command, runs):
    """With predictions/oof.csv train's labels are judged too; without, the report says it."""
    done(command, "stage=diagnose", f"run={runs[0]}")
    folder = only(runs[0].parent.parent / "diagnose")
    assert set(read_json(folder / "diagnosis.json")["wrong_labels"]["counts"]) == {"dev"}
    assert "not judged" in (folder / "report.html").read_text(encoding="utf-8")
    train = read_csv(only(runs[0].parent.parent.parent, "data") / "train.csv")
    table = train[["id", "label"]].assign(prediction=train["label"], fold=0)
    row = int(np.flatnonzero(train["label"] == 0)[0])
    table.loc[row, "prediction"] = 4.5
    table.sample(frac=1, random_state=0).to_csv(runs[0] / "predictions/oof.csv", index=False)
    done(command, "stage=diagnose", f"run={runs[0]}")
    found = read_json(folder / "diagnosis.json")["wrong_labels"]
    assert found["counts"]["train"]["n"] == 1
    (suspect,) = (part for part in found["rows"] if part["set"] == "train")
    assert suspect["id"] == train["id"][row]
    assert (suspect["label"], suspect["predictions"]) == (0, [4.5])
    assert "not judged" not in (folder / "report.html").read_text(encoding="utf-8")


def test_a_run_of_folds(command, runs, competition):
    """A run whose models lie in its folds: their mean is judged, each fold has its curve, and rows
    of dev behind train's in oof.csv are no rows of train."""
    one, two = runs
    for number, run in enumerate(runs):
        shutil.copytree(run, one / f"folds/sts/fold{number + 1}-0123456789",
                        ignore=shutil.ignore_patterns("folds"))
    shutil.rmtree(one / "model")
    (one / "history.jsonl").unlink()
    (one / "folds/sts/.0123456789.lock").touch()  # as every fold that was trained leaves
    frames = [read_csv(competition / f"{name}.csv") for name in ("train", "dev")]
    table = pd.concat(frames)[["id", "label"]].assign(fold=1, prediction=lambda rows: rows["label"])
    table.iloc[-1, -1] = 5 - table.iloc[-1, 1]
    table.to_csv(one / "predictions/oof.csv", index=False)
    written_so(one)
    evidence = read_evidence(str(one))
    assert evidence.train.tolist() == frames[0]["label"].tolist()
    done(command, "stage=diagnose", f"run={one}")
    found = read_json(only(one.parent.parent / "diagnose") / "diagnosis.json")
    assert [part["run"] for part in found["curves"][0]] == ["fold1-0123456789", "fold2-0123456789"]
    assert found["wrong_labels"]["counts"]["train"]["n"] == 0
    assert len(models(one)) == 2
    failed = [row for part in found["probes"][0] for row in part["failures"]]
    row = next(row for row in failed if row["closer_score"] < row["further_score"])
    file = Path("pair.csv")
    pd.DataFrame([{"id": "1", "sentence_1": row["sentence"], "sentence_2": row["closer"]}]).to_csv(
        file, index=False)
    (one / "folds/sts/fold1-0123456789/model").rename(one / "model")
    written_so(one)
    scores = []
    for run in (one, two):
        done(command, "stage=predict", f"run={run}", f"pairs={file}", "submissions_dir=out")
        scores.append(float(read_csv(Path(f"out/{run.name}-pair.csv"))["target"].iloc[0]))
    assert row["closer_score"] == pytest.approx(np.mean(scores), abs=2e-2)  # bf16 in batches


def change_dev(run, data):
    """Another label in dev.csv."""
    table = pd.read_csv(data / "dev.csv", dtype=str, keep_default_na=False)
    table.loc[0, "label"] = "1.7"
    table.to_csv(data / "dev.csv", index=False)


def lose_prediction(run, data):
    """A dev prediction less."""
    lines = (run / "predictions/dev.csv").read_text().splitlines()
    (run / "predictions/dev.csv").write_text("\n".join(lines[:-1]) + "\n")
    written_so(run)


def not_a_number(run, data):
    """A test prediction that is no number."""
    lines = (run / "predictions/test.csv").read_text().splitlines()
    lines[1] = lines[1].split(",")[0] + ",nan"
    (run / "predictions/test.csv").write_text("\n".join(lines) + "\n")
    written_so(run)


def lose_settings(run, data):
    """No config.yaml."""
    (run / "config.yaml").unlink()
    written_so(run)


@pytest.mark.parametrize(("spoil", "words"), [
    (change_dev, r"data/dev.csv: expected the content that .*seed1-\w+ was trained on"),
    (lose_prediction, r"dev.csv: expected a prediction for each of 24 ids, got 23 rows with 23"),
    (not_a_number, r"test.csv: id '.+': expected a number, got nan"),
    (lose_settings, r"config.yaml: expected the run's settings, got")])
def test_spoilt_runs_are_refused(command, runs, competition, spoil, words):
    """One line that says the file and what is wrong; nothing is written."""
    spoil(runs[0], competition)
    assert re.search(words, refusal(command("stage=diagnose", f"run={runs[0]}")))
    assert not (runs[0].parent.parent / "diagnose").exists()


def test_wrong_requests_are_refused(command, runs, tmp_path):
    """No run, both keys, one run twice, three runs, no such folder, a run of another stage."""
    one, two = runs
    for words, expected in (
            ((), "run: expected the folder of a finished sts run"),
            ((f"run={one}", f"runs=[{two}]"), "expected one of the two, got both"),
            ((f"runs=[{one},{one}]",), "expected one run or two different ones"),
            ((f"runs=[{one},{two},{one}]",), "expected one run or two different ones"),
            (("run=nowhere",), "expected the folder of a finished run, got 'nowhere'")):
        assert expected in refusal(command("stage=diagnose", *words))
    manifest = read_json(one / "manifest.json") | {"stage": "simcse"}
    del manifest["checksum"]  # which tells an edit by hand
    (one / "manifest.json").write_text(json.dumps(manifest))
    assert "(stage sts)" in refusal(command("stage=diagnose", f"run={one}"))


def test_two_data_sets_are_refused(command, runs, competition, make_encoder):
    """Runs on different dev sets cannot stand side by side."""
    other = competition.parent / "other"
    shutil.copytree(competition, other)
    table = pd.read_csv(other / "dev.csv", dtype=str, keep_default_na=False)
    table.head(20).to_csv(other / "dev.csv", index=False)
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "name=third",
                                      "sts.max_steps=1", "sts.eval_every=1", data="other"))
    third = only(runs[0].parent, "third-*")
    words = refusal(command("stage=diagnose", f"runs=[{runs[0]},{third}]"))
    assert "expected two runs on the same dev.csv" in words


def test_trial_runs_find_their_sample(command, runs, monkeypatch, tmp_path):
    """A trial's data are the bundled sample wherever the command is given; others are as named."""
    settings = (runs[0] / "config.yaml").read_text()
    (runs[0] / "config.yaml").write_text(settings.replace("trial: never", "trial: always"))
    written_so(runs[0])
    with pytest.raises(UserError, match=r"sample.train.csv: expected the content"):
        read_evidence(str(runs[0]))


def test_findings():
    """Urgent ones first, at most seven, each with numbers; what is not certain is left out."""
    def value(number, low=None, high=None):
        return {"value": number, "low": number if low is None else low,
                "high": number if high is None else high}

    def part(n, mae, bias):
        return {"n": n, "few": n < 20, "runs": [{
            "mae": value(mae, mae - 0.1, mae + 0.1), "bias": value(bias, bias - 0.1, bias + 0.1)}]}

    found = {
        "runs": [{"name": "one"}], "rows": {"dev": 100},
        "whole": {"runs": [{"pearson": value(0.9), "mae": value(0.5, 0.45, 0.55)}]},
        "ranges": [part(50, 0.8, 0.7) | {"name": "0–1"}, part(10, 3, 3) | {"name": "1–2"}],
        "leaks": {"n": 5, "exact": 3, "swapped": 1, "near-duplicate": 1,
                  "runs": [{"all": value(0.9), "without": value(0.85)}]},
        "test": {"apart": {"auc": value(0.9, 0.85, 0.95)}, "sources": {"unseen": 0.25},
                 "expected": [[{"n": 50, "low": 0.8, "high": 0.95}]]},
        "probes": [[{"kind": "negation", "n": 30, "rate": 0.2, "low": 0.1, "high": 0.4},
                    {"kind": "number", "n": 30, "rate": 0.9, "low": 0.8, "high": 0.95}]],
        "corners": {"much overlap, low label": part(8, 2, 2) | {"meaning": "stance"},
                    "little overlap, high label": part(8, 1, 0.05) | {"meaning": "words"}},
        "wrong_labels": {"far": 1.5, "counts": {"dev": {"n": 4, "contradicted": 2}}},
        "curves": [[{"stage": "sts", "spikes": [{"step": 7, "z": 9.0, "loss": 4, "trend": 1}]}]],
        "calibration": [{"gain": {"pearson": value(0.001, -0.001, 0.002), "mae": value(0)}}],
        "slices": {"source": [part(30, 0.9, 0) | {"name": "nsmc"}]}}
    sentences = findings(found)
    assert [row["section"] for row in sentences] == [
        "shift", "shift", "ranges", "probes", "corners", "labels", "training"]
    words = " ".join(row["sentence"] for row in sentences)
    for expected in ("5 of 100 dev pairs", "0.8500 instead of 0.9000", "AUC 0.90", "25% of test",
                     "labels 0–1: 0.80", "0.70 too high", "negation: it gets 20% of 30",
                     "much overlap, low label", "2 of them also", "step 7 of sts"):
        assert expected in words
    assert "recalibration" not in words


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; without one the test is skipped, unless REQUIRE_BROWSER=1."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail("REQUIRE_BROWSER=1 and there is no chromium")
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=[
            "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync"])
        yield started
        started.close()


def middle(element) -> tuple[float, float]:
    """The middle of an element on the screen, scrolled to."""
    element.scroll_into_view_if_needed()
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_in_a_browser(command, runs, cache, browser, width, scheme):
    """It opens without an error or a request, hovers show sentences, a click lists a range."""
    path = cache / "report.html"
    if not path.exists():
        done(command, "stage=diagnose", f"run={runs[0]}")
        shutil.copy(only(runs[0].parent.parent / "diagnose") / "report.html", path)
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme,
                                  reduced_motion="reduce")
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text)
            if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: wrong.append(request.url)
            if not request.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".chart .main-svg").count() > 8

    pairs = json.loads(page.locator("#content").text_content())["pairs"]
    points = page.locator('[data-chart="scatter-0"] .points path.point')
    assert points.count() == len(pairs)
    page.mouse.move(*middle(points.first))
    hovered = page.locator('[data-chart="scatter-0"] .hoverlayer .hovertext')
    hovered.wait_for()
    words = hovered.text_content()
    assert any(pair["sentence_1"].split()[0] in words and f"label {pair['label']:.1f}" in words
               for pair in pairs)
    place = next(row for row, pair in enumerate(pairs) if pair["sentence_1"] == ATTACK)
    page.mouse.move(1, 1)
    hovered.wait_for(state="detached")
    page.evaluate("""place => Plotly.Fx.hover(document.querySelector('[data-chart="scatter-0"]'),
                  [{curveNumber: 1, pointNumber: place}])""", place)
    hovered.filter(has_text="alert").wait_for()
    for part in ATTACK.split():
        assert part in hovered.text_content()  # the tags as text

    inside = [pair for pair in pairs if pair["label"] >= 4]
    bar = middle(page.locator('[data-chart="ranges"] .bars .point path').last)
    page.mouse.move(*bar)
    page.mouse.click(*bar)
    rows = page.locator("#range-pairs tbody tr")
    rows.first.wait_for()
    assert rows.count() == len(inside)
    listed = rows.locator("div:first-child").all_text_contents()
    assert sorted(listed) == sorted(pair["sentence_1"] for pair in inside)
    low = [pair for pair in pairs if pair["label"] < 1]
    page.locator('button[data-range="0,1"]').click()
    assert rows.count() == len(low)
    assert page.locator('button[data-range="0,1"]').get_attribute("aria-pressed") == "true"

    for details in page.locator("main details").all():
        details.evaluate("element => element.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    page.wait_for_timeout(300)
    assert wrong == []
    context.close()


def test_data_that_were_moved(command, runs, competition, tmp_path):
    """data.dir says where they are now; without it the line names the key."""
    competition.rename(tmp_path / "moved")
    said = refusal(command("stage=diagnose", f"run={runs[0]}"))
    assert said.startswith("data: expected the folder of the data that ")
    assert said.endswith("got none; data.dir=FOLDER says where they are now")
    done(command, "stage=diagnose", f"run={runs[0]}", "data.dir=moved")
    shutil.copytree(tmp_path / "moved", competition)
    (competition / "dev.csv").write_bytes((competition / "train.csv").read_bytes())
    assert "expected the content that" in refusal(
        command("stage=diagnose", f"run={runs[0]}", "data.dir=data"))
