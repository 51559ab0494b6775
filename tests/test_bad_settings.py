"""Wrong keys, values, stages, models and names through the real entry point: one line each.

python -m pytest tests/test_bad_settings.py
"""

import subprocess
import sys
from pathlib import Path

import pytest
from refusal import contents, refusal, unfinished

import run
from pipeline.layers import presets
from pipeline.stages import STAGES

HUB = "klue/roberta-large"


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    """An empty Hub cache: what this machine may have downloaded does not count."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("words", "message"), [
    (["stage=chekc"], f"stage: expected one of {', '.join(STAGES)}, got 'chekc'; did you mean "
                      "check?"),
    (["stage="], f"stage: expected one of {', '.join(STAGES)}, got ''"),
    (["stage=check", "sede=1"], "unknown key 'sede'; did you mean seed? (python run.py help lists "
                                "them)"),
    (["stage=check", "sts.batchsize=8"], "unknown key 'sts.batchsize'; did you mean "
                                         "sts.batch_size? (python run.py help lists them)"),
    (["stage=check", "seed=one"], "seed: expected int, got 'one'"),
    (["stage=check", "sts.epochs=true"], "sts.epochs: expected float, got True"),
    (["stage=check", "sts.batch_size=0"], "sts.batch_size: expected 2 or more, got 0"),
    (["stage=check", "encoder.pooling=max"], "encoder.pooling: expected one of auto, cls, cls_mlp, "
     "mean, first_last_mean, pooler, got 'max'"),
    (["check"], "argument 'check': expected stage=check"),
    (["preset=debug", "sts"], "argument 'sts': expected stage=sts"),
    (["stage=check", "preset=roberta"], f"preset: expected one of {', '.join(presets())}, got "
                                        "'roberta'"),
    (["help", "sed=1"], "unknown key 'sed'; did you mean seed? (python run.py help lists them)"),
    (["stage=check", "trial=always", "data.dir=data"],
     "trial=always runs on data/sample: leave out data.dir"),
    (["stage=predict"], "run: expected the folder of a finished run, got ''"),
    (["stage=predict", "run=runs/none"], "run: expected the folder of a finished run, got "
                                         "'runs/none'")])
def test_refused_words(command, tmp_path, words, message):
    """The key, expected, got, the nearest valid name; not a file is written."""
    assert refusal(command(*words)).startswith(message)
    assert contents(tmp_path) == {}


def test_as_a_program():
    """The real process: exit code 2, one line on stderr, nothing on stdout."""
    done = subprocess.run([sys.executable, "run.py", "stage=chekc"], capture_output=True, text=True,
                          cwd=Path(run.__file__).parent, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: stage: expected one of check, ")
    assert done.stderr.endswith("got 'chekc'; did you mean check?\n")


def test_no_rows_left_for_a_batch(command, competition, make_encoder, tmp_path):
    """A batch larger than the data is refused before anything begins."""
    words = [f"data.dir={competition}", f"encoder.path={make_encoder()}"]
    before = contents(tmp_path)
    assert refusal(command("stage=sts", "chain=[sts]", "sts.batch_size=49", *words)) == (
        "sts.batch_size: expected at most 48, the number of training pairs, got 49")
    assert "simcse.batch_size: expected at most " in refusal(
        command("stage=simcse", "simcse.batch_size=1000", *words))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("chain", ["[simcse]", "[sts,sts]", "[check,sts]"])
def test_chain(command, competition, make_encoder, tmp_path, chain):
    """Distinct training stages, with the one that was asked for."""
    before = contents(tmp_path)
    said = refusal(command("stage=sts", f"chain={chain}", f"data.dir={competition}",
                           f"encoder.path={make_encoder()}"))
    assert said.startswith("chain: expected distinct stages of ")
    assert said.endswith(f"with sts among them, got {chain}")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("stage", ["check", "sts"])
@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "../gone"])
def test_no_model_folder(command, competition, tmp_path, stage, path):
    """A path that is meant as a folder and is none."""
    before = contents(tmp_path)
    said = refusal(command(f"stage={stage}", "chain=[sts]", f"data.dir={competition}",
                           f"encoder.path={path}"))
    assert said == f"encoder.path: expected a Hub id or a folder, got no folder {path}"
    assert contents(tmp_path) == before


def test_a_message_is_one_line(command, competition):
    """Whatever stands in the input."""
    said = refusal(command("stage=check", f"data.dir={competition}", "encoder.path=./no\nwhere"))
    assert said == (
        "encoder.path: expected plain text on one line, got './no\\nwhere'")


def test_folder_without_a_model(command, competition, tmp_path):
    """A folder that holds no encoder, named; no model is left where one would be reused."""
    (tmp_path / "empty").mkdir()
    said = refusal(command("stage=sts", "chain=[sts]", f"data.dir={competition}",
                           "encoder.path=./empty"))
    assert said.startswith("encoder.path=./empty: expected a Hugging Face encoder's folder, got: ")
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("stage", ["check", "simcse", "sts"])
def test_hub_out_of_reach(command, competition, tmp_path, no_cache, stage):
    """With CSVs it never falls back: the model is named, and the three ways out."""
    before = contents(tmp_path)
    said = refusal(command(f"stage={stage}", f"encoder.path={HUB}"))
    assert said.startswith(f"encoder.path={HUB}: ")
    for way in ("encoder.path=FOLDER", "HF_HOME", "preset=offline"):
        assert way in said
    assert contents(tmp_path) == before


def test_hub_out_of_reach_by_default(command, competition, no_cache):
    """The same for the model that nobody asked for by name."""
    assert refusal(command("stage=check")).startswith(f"encoder.path={HUB}: ")


def test_trial_says_so_first(command, tmp_path, make_encoder):
    """Without CSVs the first line says that it is a trial; with them nothing does."""
    code, out, _ = command("stage=check", f"encoder.path={make_encoder()}")
    assert code == 0
    first, second, *_ = out.splitlines()
    assert first.startswith("trial: running on the bundled sample ")
    assert first.split(" sample ")[1].split(" with ")[0] == second.removeprefix("data: ")


def test_no_trial_with_csvs(command, competition, make_encoder):
    """Here the working folder's own data/ has CSVs."""
    code, out, _ = command("stage=check", f"encoder.path={make_encoder()}")
    assert code == 0
    assert out.startswith("data: data\n  train     48 pairs")


@pytest.mark.parametrize("name", ["../x", "/tmp/x"])
def test_bad_names(command, competition, make_encoder, tmp_path, name):
    """A name is one folder's; nothing is trained or written anywhere but in runs/."""
    before = contents(tmp_path)
    said = refusal(command("stage=sts", "chain=[sts]", f"data.dir={competition}", f"name={name}",
                           f"encoder.path={make_encoder()}", "encoder.max_length=32"))
    assert said == f"name: expected letters, digits, '-', '_' and '.', got {name!r}"
    after = contents(tmp_path)
    assert {path for path in after if not path.endswith(".lock")} == before.keys()


def test_name_that_fits_nowhere(command, competition, make_encoder, tmp_path):
    """80 syllables fit a run's folder and not its submission: refused before training, or fine."""
    code, _, err = command(
        "stage=sts", "chain=[sts]", f"data.dir={competition}", f"name={'가' * 80}",
        f"encoder.path={make_encoder()}", "encoder.max_length=32", "sts.max_steps=1",
        "sts.batch_size=8")
    assert code == 0 or unfinished(tmp_path) == [], err[-200:]


def test_encoder_folder_with_a_space(command, competition, make_encoder, tmp_path):
    """The name made from a folder's is one that is allowed, whatever the folder is called."""
    folder = tmp_path / "my model (v2)"
    folder.symlink_to(make_encoder(), target_is_directory=True)
    code, _, err = command(
        "stage=sts", "chain=[sts]", f"data.dir={competition}", f"encoder.path={folder}",
        "encoder.max_length=32", "sts.max_steps=1", "sts.batch_size=8")
    assert code == 0, err


def test_more_tokens_than_positions(command, competition, make_encoder, tmp_path):
    """The most that the encoder can read is said."""
    said = refusal(command("stage=sts", "chain=[sts]", f"data.dir={competition}",
                           f"encoder.path={make_encoder()}", "encoder.max_length=65"))
    assert said == f"encoder.max_length: expected 64 or less for {make_encoder()}, got 65"
    assert unfinished(tmp_path) == []
