"""The keys, the commented reference configs/base.yaml, the presets, the help page.

python -m pytest tests/test_config.py
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.config import KEYS, Config, reference, shown
from pipeline.layers import CONFIGS, check_limits, load, presets, read_layer

BASE = CONFIGS / "base.yaml"
PRESETS = sorted(path.stem for path in (CONFIGS / "presets").glob("*.yaml"))


def settings(text: str) -> dict[str, tuple[object, str]]:
    """base.yaml with every # taken away: dotted key to its value and its comment."""
    found, section = {}, ""
    for line in text.splitlines():
        line = line.removeprefix("# ")
        if head := re.fullmatch(r"(\w+):", line):
            section = head[1] + "."
        elif part := re.fullmatch(r"( *)(\w+): (.*?)  # (.+)", line):
            name = (section if part[1] else "") + part[2]
            assert name not in found, f"{name} stands there twice"
            found[name] = yaml.safe_load(part[3]), part[4]
    return found


def test_every_key_says_what_it_is():
    """No key is without words, and every default is within its own limits."""
    for name, (default, metadata) in KEYS.items():
        assert metadata["help"].strip(), name
        check_limits(name, default, metadata)


def test_keys_that_scripts_rely_on():
    """The names that DESIGN.md promises for what there is so far."""
    training = ["epochs", "max_steps", "batch_size", "learning_rate", "warmup_ratio",
                "weight_decay", "eval_every", "patience"]
    promised = {"stage", "chain", "preset", "trial", "seed", "name", "device", "precision",
                "deterministic", "runs_dir", "submissions_dir", "data.dir", "encoder.path",
                "encoder.pooling", "encoder.max_length", "encoder.prefix", "run", "pairs",
                "submission", "simcse.temperature", "simcse.dropout", "simcse.geometry_every",
                "sts.head", "sts.loss", *(f"{stage}.{name}" for stage in ("simcse", "sts")
                                          for name in training)}
    assert promised <= KEYS.keys()


def test_defaults_are_not_shared():
    """A list changed in one configuration leaves the next one's default alone."""
    Config().chain.append("nli")
    assert Config().chain == ["simcse", "sts"]


def test_base_is_the_reference():
    """configs/base.yaml is what `python -m pipeline.config` prints now."""
    assert BASE.read_text(encoding="utf-8") == reference()


def test_base_changes_nothing():
    """As it is committed every line of it is a comment."""
    assert read_layer(BASE) == {}


def test_base_names_every_key_with_default_and_comment():
    """Taking a # away never changes a value, and every key has the words of its dataclass."""
    found = settings(BASE.read_text(encoding="utf-8"))
    assert list(found) == list(KEYS)
    for name, (default, metadata) in KEYS.items():
        value, comment = found[name]
        value = float(value) if isinstance(default, float) else value
        value = [str(part) for part in value] if isinstance(default, list) else value
        assert value == default, name
        assert type(value) is type(default), name
        assert comment.startswith(metadata["help"]), name
        for choice in metadata.get("choices", []):
            assert choice in comment, name


def test_base_without_its_marks_loads(tmp_path, monkeypatch):
    """With the # of all lines taken away, sections included, it is still a valid layer."""
    monkeypatch.chdir(tmp_path)
    lines = BASE.read_text(encoding="utf-8").splitlines()
    bare = [line.removeprefix("# ") for line in lines[3:]]
    (tmp_path / "base.yaml").write_text("\n".join(bare), encoding="utf-8")
    (tmp_path / "presets").symlink_to(CONFIGS / "presets")
    monkeypatch.setattr("pipeline.layers.CONFIGS", tmp_path)
    config = load([])
    assert config.sts == Config().sts
    assert config.encoder == Config().encoder


def test_presets_are_the_files():
    """presets() lists exactly the files, the offline one and the reference model among them."""
    assert presets() == PRESETS
    assert {"offline", "roberta-large", "debug"} <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset(name, tmp_path, monkeypatch):
    """It loads, sets the chain and keys of the encoder and stages alone, says why of every key."""
    monkeypatch.chdir(tmp_path)
    path = CONFIGS / "presets" / f"{name}.yaml"
    layer = read_layer(path)
    assert layer
    assert {key.partition(".")[0] for key in layer} <= {"encoder", "chain", "simcse", "nli",
                                                           "distill", "sts"}
    config = load([f"preset={name}", "data.dir=data"])
    assert (config.preset, config.name, config.trial) == (name, name, "never")
    for key, value in layer.items():
        part, _, leaf = key.partition(".")
        found = getattr(config, part)
        assert (getattr(found, leaf) if leaf else found) == value, key
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("# ")
    for line in lines:
        assert re.fullmatch(r"\w+:|(  )?\w+: .+  # \S.+", line), line


@pytest.mark.parametrize(("value", "text"), [
    (["simcse", "sts"], "[simcse,sts]"), ([], "[]"), (True, "true"), (False, "false"),
    (3e-5, "3e-05"), ("", ""), (42, "42")])
def test_shown(value, text):
    """A default stands there as one would type it."""
    assert shown(value) == text


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["stage=help"]])
def test_help_lists_everything(command, words):
    """The stages and every key with its default, however help is asked for."""
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    for name, (default, _) in KEYS.items():
        assert re.search(rf"\n  {re.escape(f'{name}={shown(default)}')}\s", out), name
    for name in ("check", "simcse", "sts", "predict"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize("width", ["40", "60", "200"])
def test_help_keeps_the_names_of_presets_whole(command, monkeypatch, width):
    """At any width of the terminal a preset's name can be found and copied."""
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = command("help")
    assert set(PRESETS) <= set(re.findall(r"[\w-]+", out))


def test_help_keeps_what_a_long_default_means_whole(command, monkeypatch):
    """No key's meaning is broken within a word, however long the key's default is."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("help")
    for name, (_, metadata) in KEYS.items():
        assert " ".join(metadata["help"].split()) in " ".join(out.split()), name


def test_help_does_not_load_torch():
    """Help and a mistyped key answer at once: neither torch nor transformers is imported."""
    script = ("import sys, run\n"
              "assert run.main(['help']) == 0 and run.main(['sed=1']) == 2\n"
              "print([name for name in ('torch', 'transformers') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          cwd=Path(__file__).parent.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ("error: unknown key 'sed'; did you mean seed? "
                           "(python run.py help lists them)\n")


def test_module_prints_the_reference():
    """`python -m pipeline.config` is the command that base.yaml names."""
    done = subprocess.run([sys.executable, "-m", "pipeline.config"], capture_output=True, text=True,
                          cwd=Path(__file__).parent.parent, check=True)
    assert done.stdout == reference()
