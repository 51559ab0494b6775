"""Foreign input runs no code and writes nowhere but where it may.

python -m pytest tests/test_security.py
"""

import ast
import os
import shutil
from pathlib import Path

import pytest
from refusal import contents, refusal
from toy import small

import pipeline
from pipeline.layers import load, own_name

SOURCES = sorted(Path(pipeline.__file__).parent.rglob("*.py"))
UNSAFE = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle", "subprocess"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_module_unpickles_or_runs_foreign_code(path):
    """Neither pickles, nor torch.load, nor eval; no remote code unless a key asks for it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.partition(".")[0] for alias in node.names} | {
                (getattr(node, "module", None) or "").partition(".")[0]}
            assert not names & UNSAFE, names
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "torch.load", "os.system", "yaml.load",
                                  "yaml.unsafe_load"), called
            for keyword in node.keywords:
                assert not (keyword.arg in ("trust_remote_code", "allow_pickle")
                            and ast.unparse(keyword.value) != "False"), ast.unparse(node)


class Payload:
    """What a hostile weights file holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_pickled_weights_run_nothing(command, competition, make_encoder, tmp_path):
    """An encoder's folder with a hostile pytorch_model.bin is refused in one line."""
    import pickle

    folder = tmp_path / "foreign"
    shutil.copytree(make_encoder(), folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "harm")))
    code, _, err = command("stage=sts", *small(folder, "chain=[sts]"))
    assert code == 2, err
    assert "error: encoder.path=" in err
    assert "Traceback" not in err
    assert not (tmp_path / "harm").exists()


def test_code_in_a_models_folder_is_not_run(command, competition, make_encoder, tmp_path):
    """A model that brings code of its own is refused, and its code is not run."""
    folder = tmp_path / "foreign"
    shutil.copytree(make_encoder(), folder)
    config = (folder / "config.json").read_text(encoding="utf-8").replace(
        '"model_type": "bert"', '"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine", '
                                '"AutoModel": "code.Mine"}')
    (folder / "config.json").write_text(config, encoding="utf-8")
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\n")
    code, _, err = command("stage=sts", *small(folder, "chain=[sts]"))
    assert code == 2, err
    assert "error: encoder.path=" in err
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("word", ["name=../x", "name=..", "name=/tmp/x", "name=a/../../b",
                                  "name=a\\..\\b", "preset=../../x", "preset=/etc/passwd",
                                  "fetch.name=../x"])
@pytest.mark.parametrize("stage", ["sts", "fetch"])
def test_no_key_leads_out(command, competition, make_encoder, tmp_path, stage, word):
    """Names that become parts of paths are names; nothing is written, inside or outside."""
    if stage == "fetch" and word.startswith("name="):
        pytest.skip("fetch has no run")
    before = contents(tmp_path)
    said = refusal(command(f"stage={stage}", *small(make_encoder()), word))
    assert said.startswith(f"{word.partition('=')[0]}: expected ")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("words", [
    ["run=../../x"], ["run=.."], ["runs=[../a,../..]"], ["encoder.path=../.."],
    ["encoder.path=../x y/../z"], ["run=runs/sts/a b-0123456789"]])
def test_names_made_of_paths_stay_inside(words):
    """What the software names itself after is reduced to one part of a path."""
    name = own_name(load(["data.dir=x", *words]))
    assert "/" not in name
    assert not name.startswith(".")
