"""Layers of settings: which one wins, what a value may be, when a run is a trial.

python -m pytest tests/test_layers.py
"""

import os
from pathlib import Path

import pytest

from pipeline.config import SAMPLE, Config
from pipeline.errors import UserError
from pipeline.layers import load, parse, read_layer
from pipeline.stages import STAGES, TRAINING


@pytest.fixture
def configs(tmp_path, monkeypatch) -> Path:
    """An empty working folder with its own configs/ and three presets."""
    folder = tmp_path / "configs"
    (folder / "presets").mkdir(parents=True)
    for name, text in (("offline", "encoder:\n  path: offline\n"),
                       ("roberta-large", "encoder:\n  path: klue/roberta-large\n"),
                       ("mine", "encoder:\n  path: a/mine\nsts:\n  epochs: 7.0\n  patience: 7\n")):
        (folder / "presets" / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("pipeline.layers.CONFIGS", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def base(configs: Path, text: str) -> None:
    """Writes configs/base.yaml."""
    (configs / "base.yaml").write_text(text, encoding="utf-8")


def refused(*words: str) -> str:
    """The one line with which these words are refused."""
    with pytest.raises(UserError) as caught:
        load(list(words))
    return str(caught.value)


def user_data(folder: Path) -> None:
    """Puts a CSV where the user's own go."""
    (folder / "data").mkdir()
    (folder / "data" / "train.csv").write_text("id\n", encoding="utf-8")


def test_last_layer_wins(configs):
    """defaults < base.yaml < preset < command line, key by key."""
    base(configs, "preset: mine\nseed: 1\nsts:\n  epochs: 2\n  patience: 2\n  batch_size: 2\n")
    sts = load(["sts.patience=9"]).sts
    assert (sts.patience, sts.epochs, sts.batch_size) == (9, 7.0, 2)
    assert sts.warmup_ratio == Config().sts.warmup_ratio
    assert load([]).seed == 1
    assert load(["preset=offline"]).sts.epochs == 2.0  # the command line's preset, not base's
    assert load(["preset=offline"]).encoder.path == "offline"


def test_last_word_wins(configs):
    """A key given twice counts as last given."""
    assert load(["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(("word", "value"), [
    ("encoder.prefix=query: ", "query: "), ("encoder.prefix=", ""), ("encoder.prefix= ", " "),
    ("name=a=b", "a=b"), ("name=2024", "2024"), ("name=true", "true"), ("encoder.prefix=~", "~"),
    ("runs_dir=~", os.path.expanduser("~")), ("data.extra=[~/a.txt]",
                                              [os.path.expanduser("~/a.txt")]),
    ("encoder.path=~/x", os.path.expanduser("~/x")),
    ("encoder.prefix='q'", "'q'"), ("encoder.prefix=[a: {", "[a: {"),
    ("chain=[sts]", ["sts"]), ("chain=[simcse,sts]", ["simcse", "sts"]), ("chain=sts", ["sts"]),
    ("chain=[ simcse , 'sts' ]", ["simcse", "sts"]), ("chain=[]", []),
    ("data.extra=[a b.txt,c.csv]", ["a b.txt", "c.csv"]),
    ("sts.learning_rate=1e-5", 1e-5), ("sts.learning_rate=2.5E-5", 2.5e-5), ("sts.epochs=3", 3.0),
    ("sts.epochs=.5", 0.5), ("seed=7", 7), ("simcse.drop_last=false", False), ("force=true", True)])
def test_values_of_the_command_line(configs, word, value):
    """Every value arrives with its key's type; texts arrive as typed, spaces included."""
    name = word.partition("=")[0]
    found = load(["data.dir=x", word])
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("word", "message"), [
    ("seed=abc", "seed: expected int, got 'abc'"),
    ("seed=1.5", "seed: expected int, got 1.5"),
    ("seed=true", "seed: expected int, got True"),
    ("seed=[1]", "seed: expected int, got [1]"),
    ("seed=[1", "seed: expected int, got '[1'"),
    ("seed=null", "seed: expected int, got None"),
    ("seed=2024-13-45", "seed: expected int, got '2024-13-45'"),
    ("seed=0b_", "seed: expected int, got '0b_'"),
    ("sts.batch_size=16.0", "sts.batch_size: expected int, got 16.0"),
    ("sts.epochs=many", "sts.epochs: expected float, got 'many'"),
    ("sts.epochs=true", "sts.epochs: expected float, got True"),
    ("force=1", "force: expected bool, got 1"),
    ("force=maybe", "force: expected bool, got 'maybe'"),
    ("seed=-1", "seed: expected 0 or more, got -1"),
    ("sts.batch_size=1", "sts.batch_size: expected 2 or more, got 1"),
    ("simcse.temperature=0", "simcse.temperature: expected more than 0, got 0"),
    ("simcse.dropout=0.95", "simcse.dropout: expected 0.9 or less, got 0.95"),
    ("sts.warmup_ratio=1.1", "sts.warmup_ratio: expected 1 or less, got 1.1"),
    ("sts.warmup_ratio=nan", "sts.warmup_ratio: expected 0 or more, got nan"),
    ("sts.epochs=nan", "sts.epochs: expected more than 0, got nan"),
    ("sts.head=crss", "sts.head: expected one of cross, bi, got 'crss'; did you mean cross?"),
    ("device=gpu", "device: expected one of auto, cuda, mps, cpu, got 'gpu'; did you mean cpu?"),
    ("precision=bf61", "precision: expected one of auto, fp32, bf16, fp16, got 'bf61'; did you "
                       "mean bf16?"),
    ("trial=Always", "trial: expected one of auto, always, never, got 'Always'; did you mean "
                     "always?"),
    ("preset=ofline", "preset: expected one of mine, offline, roberta-large, got 'ofline'; did "
                      "you mean offline?"),
    ("preset=../base", "preset: expected one of mine, offline, roberta-large, got '../base'"),
    ("sts.hea=bi", "unknown key 'sts.hea'; did you mean sts.head? (python run.py help lists them)"),
    ("qqqq=1", "unknown key 'qqqq' (python run.py help lists them)"),
    ("--seed=3", "unknown key '--seed'; did you mean seed? (python run.py help lists them)"),
    ("seed", "argument 'seed': expected key=value, such as seed=VALUE, without spaces around ="),
    ("sed", "argument 'sed': expected key=value; did you mean seed?"),
    ("offline", "argument 'offline': expected key=value; did you mean preset=offline?")])
def test_refused_words(configs, word, message):
    """The key, what was expected, what was got and the nearest valid name."""
    assert refused(word, "data.dir=x") == message


@pytest.mark.parametrize("word", ["sts.learning_rate=inf", "sts.weight_decay=inf",
                                  "sts.epochs=1e999"])
def test_infinity_is_no_setting(configs, word):
    """No key takes an infinite number."""
    assert refused(word, "data.dir=x").startswith(word.partition("=")[0] + ": expected")


def test_seed_is_within_what_numpy_takes(configs):
    """2³² - 1 is the largest: one more would end a run inside numpy."""
    assert load(["seed=4294967295", "data.dir=x"]).seed == 2**32 - 1
    assert "seed: expected 4294967295 or less" in refused("seed=4294967296", "data.dir=x")


@pytest.mark.parametrize(("text", "message"), [
    ("sede: 1\n", "unknown key 'sede'; did you mean seed?"),
    ("sts:\n  hea: bi\n", "unknown key 'sts.hea'; did you mean sts.head?"),
    ("encoder: klue/roberta-large\n", "unknown key 'encoder'"),
    ("seed: true\n", "seed: expected int, got True"),
    ("seed:\n", "seed: expected int, got None"),
    ("name: 5\n", "name: expected str, got 5"),
    ("chain: sts\n", "chain: expected list, got 'sts'"),
    ("sts:\n  head: dual\n", "sts.head: expected one of cross, bi, got 'dual'"),
    ("- seed\n", "expected keys with values, got list"),
    ("seed: [1\n", "not valid YAML: "),
    ("seed: 2024-13-45\n", "not valid YAML: "),
    ("preset: 3\n", "preset: expected"),
    ("preset: [mine]\n", "preset: expected")])
def test_refused_files(configs, text, message):
    """A fault in base.yaml names the file and the key."""
    base(configs, text)
    line = refused("data.dir=x")
    assert message in line
    assert "\n" not in line
    if "preset" not in message:
        assert line.startswith(f"{configs / 'base.yaml'}: ")


def test_faulty_preset_is_named(configs):
    """A preset is checked like base.yaml, and named."""
    path = configs / "presets" / "mine.yaml"
    path.write_text("sts:\n  epochs: 0\n", encoding="utf-8")
    assert refused("preset=mine") == f"{path}: sts.epochs: expected more than 0, got 0"


def test_preset_by_path(configs, tmp_path):
    """A preset may be any YAML file; the name that it gives is fit for a folder."""
    path = tmp_path / "the best.yaml"
    path.write_text("sts:\n  epochs: 9\nencoder:\n  path: a/b\nseed: 3\n", encoding="utf-8")
    for word in (str(path), "the best.yaml"):
        config = load([f"preset={word}", "data.dir=x", "sts.patience=2"])
        assert (config.sts.epochs, config.sts.patience, config.seed) == (9.0, 2, 3)
        assert (config.preset, config.name) == (word, "the-best")
    assert refused("preset=none.yaml") == "preset: expected a file, got 'none.yaml', which is none"
    path.write_text("sts:\n  epoch: 9\n", encoding="utf-8")
    assert refused(f"preset={path}") == (f"{path}: unknown key 'sts.epoch'; did you mean "
                                         "sts.epochs?")


def test_numbers_of_a_file(configs):
    """YAML 1.1 reads 1e-5 as text: it is a number here all the same; a BOM does no harm."""
    base(configs, "\ufeffsts:\n  learning_rate: 1e-5\n  epochs: 2\n")
    assert read_layer(configs / "base.yaml") == {"sts.learning_rate": "1e-5", "sts.epochs": 2}
    sts = load([]).sts
    assert (sts.learning_rate, sts.epochs) == (1e-5, 2.0)
    assert type(sts.epochs) is float


def test_parse_splits_at_the_first_equals():
    """A value may hold equals signs."""
    assert parse("pairs=a=b.csv") == ("pairs", "a=b.csv")


def test_trial_without_data(configs):
    """With no CSV in data/ it runs on the sample, with the offline encoder, and is named so."""
    config = load([])
    assert (config.trial, config.preset, config.name) == ("always", "offline", "trial-offline")
    assert Path(config.data.dir).resolve() == SAMPLE
    assert not os.path.isabs(config.data.dir)


def test_no_trial_with_data(configs, tmp_path):
    """With a CSV in data/ it is the user's data and the reference model."""
    user_data(tmp_path)
    config = load([])
    assert (config.trial, config.preset, config.data.dir) == ("never", "roberta-large", "data")
    assert config.name == "roberta-large"


def test_other_files_are_no_data(configs, tmp_path):
    """data/ with a README alone, or with CSVs of the sample below it, is no data."""
    (tmp_path / "data" / "sample").mkdir(parents=True)
    (tmp_path / "data" / "README.md").write_text("", encoding="utf-8")
    (tmp_path / "data" / "sample" / "train.csv").write_text("id\n", encoding="utf-8")
    assert load([]).trial == "always"


@pytest.mark.parametrize("words", [["data.dir=nowhere"], ["data.dir=data"], ["trial=never"]])
def test_asked_for_data_never_falls_back(configs, words):
    """A data.dir that was given, even the default and even if empty, is never the sample."""
    config = load(words)
    assert (config.trial, config.preset) == ("never", "roberta-large")
    assert config.data.dir == words[0].partition("=")[2].replace("never", "data")


def test_data_dir_of_base_never_falls_back(configs):
    """It counts as given in base.yaml too."""
    base(configs, "data:\n  dir: elsewhere\n")
    assert (load([]).trial, load([]).data.dir) == ("never", "elsewhere")


def test_data_dir_of_a_preset_never_falls_back(configs, tmp_path):
    """It counts as given in a preset too, by name or by path, and so does trial."""
    file = tmp_path / "own.yaml"
    file.write_text("data: {dir: elsewhere}\nencoder: {path: a/b}\n", encoding="utf-8")
    config = load([f"preset={file}"])
    assert (config.trial, config.data.dir, config.name) == ("never", "elsewhere", "own")
    assert load([f"preset={file}", "data.dir=third"]).data.dir == "third"
    file.write_text("trial: never\n", encoding="utf-8")
    assert load([f"preset={file}"]).trial == "never"
    user_data(tmp_path)
    file.write_text("trial: always\n", encoding="utf-8")
    assert load([f"preset={file}"]).trial == "always"


def test_no_preset_in_a_preset(configs, tmp_path):
    """It would have no effect."""
    file = tmp_path / "own.yaml"
    file.write_text("preset: mine\n", encoding="utf-8")
    assert refused(f"preset={file}") == f"{file}: expected no preset in a preset, got 'mine'"


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_force_where_it_has_an_effect(configs, stage):
    """The stages that train; elsewhere it is refused, and not left without effect."""
    if stage in (*TRAINING, "help"):
        assert load([f"stage={stage}", "force=true"]).force
    else:
        assert refused(f"stage={stage}", "force=true").startswith(
            f"force: expected false with stage={stage}, got true")


def test_trial_always(configs, tmp_path):
    """It takes the sample though there is data, and refuses a data.dir beside it."""
    user_data(tmp_path)
    config = load(["trial=always"])
    assert (config.trial, config.preset) == ("always", "offline")
    assert Path(config.data.dir).resolve() == SAMPLE
    assert refused("trial=always", "data.dir=data") == (
        "trial=always runs on data/sample: leave out data.dir")


@pytest.mark.parametrize(("words", "preset", "name", "epochs"), [
    (["encoder.path=a/b"], "", "b", 3.0),
    (["encoder.path=x/y/"], "", "y", 3.0),
    (["encoder.path=a/b", "preset=mine"], "mine", "mine", 7.0),
    (["preset=mine"], "mine", "mine", 7.0),
    (["encoder.path=a/b", "preset=mine", "name=own"], "mine", "own", 7.0)])
@pytest.mark.parametrize("trial", [True, False])
def test_preset_and_name(configs, words, preset, name, epochs, trial):
    """An encoder without a preset takes none; a trial's own name says that it is one."""
    config = load([*words, "trial=always" if trial else "data.dir=x"])
    assert config.preset == preset
    assert config.name == (f"trial-{name}" if trial and name != "own" else name)
    assert config.sts.epochs == epochs
    given = words[0].partition("=")[2] if words[0].startswith("encoder") else "a/mine"
    assert config.encoder.path == given


def test_encoder_of_base_takes_no_preset(configs):
    """encoder.path in base.yaml counts like one on the command line."""
    base(configs, "encoder:\n  path: a/b\n")
    config = load(["data.dir=x"])
    assert (config.preset, config.encoder.path) == ("", "a/b")


@pytest.mark.parametrize(("words", "name"), [
    (["run=runs/sts/mine-0123456789"], "mine"),
    (["runs=[runs/sts/mine-0123456789,b/its-own-abcdef0123]"], "mine-and-its-own"),
    (["runs=[a/mine-0123456789,b/mine-abcdef0123]"], "mine"),
    (["run=runs/sts/mine-0123456789", "name=other"], "other"),
    (["run=odd name"], "odd-name")])
def test_name_of_what_looks_at_runs(configs, words, name):
    """Named after the runs, without their identities, unless a name is given."""
    assert load(["stage=diagnose", *words]).name == name
