"""Damaged checkpoints, saving that fails or is killed, and how much disk it takes.

python -m pytest tests/test_checkpoint_disk.py
"""

import contextlib
import errno
import os
import shutil

import pytest
from safetensors import SafetensorError
from toy import (
    Crash,
    assert_same,
    files_of,
    jagged,
    read_json,
    stopping,
    toy_model,
    toy_recipe,
    toy_task,
    toy_train,
    weights,
)

from pipeline import checkpoint, files
from pipeline.checkpoint import State
from pipeline.history import read_history
from pipeline.optimizer import adamw

NEWEST = {"model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json",
          "checksums.json"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights, state and history of an undisturbed training of 26 steps."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model, state = toy_train(folder)
    return weights(model), state, read_history(folder / "history.jsonl")


def truncate(newest):
    """Cuts a file short."""
    os.truncate(newest / "model.safetensors", (newest / "model.safetensors").stat().st_size - 1)


def flip(newest):
    """Flips one bit in the middle of a file."""
    content = bytearray((newest / "optimizer.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "optimizer.safetensors").write_bytes(content)


def cut_state(newest):
    """Another step in the state than was saved."""
    (newest / "state.json").write_text((newest / "state.json").read_text().replace("4", "8"))


DAMAGES = {
    "newest/model.safetensors": truncate,
    "newest/optimizer.safetensors": flip,
    "newest/state.json": cut_state,
    "newest/random.safetensors": lambda newest: (newest / "random.safetensors").unlink(),
    "newest/checksums.json": lambda newest: (newest / "checksums.json").unlink(),
    "best/model.safetensors": lambda newest: truncate(newest.parent / "best"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoint_is_named_and_not_used(tmp_path, undisturbed, caplog, name):
    """The training says what is damaged and begins anew."""
    with pytest.raises(Crash):
        toy_train(tmp_path, toy_task(loss=stopping(6, None)))
    DAMAGES[name](tmp_path / "checkpoints/newest")
    model, state = toy_train(tmp_path)
    folder, file = name.split("/")
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert f"checkpoints/{folder} is damaged ({file}) and is not used" in warned[0]
    assert_same(tmp_path, model, state, undisturbed)


def saved(folder, step: int) -> None:
    """Saves an untrained toy as the newest checkpoint of this step."""
    model = toy_model(seed=step)
    checkpoint.save_newest(folder, model, adamw(model, toy_recipe()), None, State(step=step))


def newest_step(folder) -> int:
    """The step that a restored training would go on from; 0 means that all was lost."""
    model = toy_model(seed=50)
    return checkpoint.restore(folder, model, adamw(model, toy_recipe()), None).step


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize(("error", "raised"), [
    (OSError(errno.ENOSPC, "No space left on device"), OSError),
    (SafetensorError("I/O error: No space left on device (os error 28)"), OSError),
    (KeyboardInterrupt(), KeyboardInterrupt)])
def test_failed_save_leaves_the_earlier_one(tmp_path, monkeypatch, caplog, error, raised, which):
    """A full disk or a second Ctrl-C while a file is written loses nothing and leaves nothing."""
    saved(tmp_path, 4)
    before = {name: (tmp_path / name).read_bytes() for name in files_of(tmp_path)}
    assert before.keys() == {f"newest/{name}" for name in NEWEST}
    save_file, calls = checkpoint.save_file, []

    def fails(tensors, path):
        calls.append(path)
        save_file(tensors, path)
        if len(calls) == which:
            os.truncate(path, 10)
            raise error

    monkeypatch.setattr(checkpoint, "save_file", fails)
    with pytest.raises(raised) as caught:
        saved(tmp_path, 8)
    if raised is OSError:
        assert caught.value.errno == errno.ENOSPC
    assert {name: (tmp_path / name).read_bytes() for name in files_of(tmp_path)} == before
    assert [path.name for path in tmp_path.iterdir()] == ["newest"]
    assert newest_step(tmp_path) == 4
    assert not caplog.records


@pytest.mark.parametrize("moment", ["rename", "removal"])
def test_save_broken_off_at_the_swap(tmp_path, monkeypatch, moment):
    """A second Ctrl-C while the new one takes the old one's place leaves one of them whole."""
    saved(tmp_path, 4)
    replace, rmtree = os.replace, shutil.rmtree

    def torn_removal(path, *args, **options):
        if (path / "state.json").exists():  # as far as a removal may have come
            (path / "model.safetensors").unlink()
            raise KeyboardInterrupt
        rmtree(path, *args, **options)

    def torn_rename(source, target, *args, **options):
        if target == tmp_path / "newest":
            raise KeyboardInterrupt
        replace(source, target, *args, **options)

    if moment == "rename":
        monkeypatch.setattr(files.os, "replace", torn_rename)
    else:
        monkeypatch.setattr(files.shutil, "rmtree", torn_removal)
    with contextlib.suppress(KeyboardInterrupt):
        saved(tmp_path, 8)
    monkeypatch.undo()
    assert newest_step(tmp_path) in (4, 8)


def test_disk_holds_newest_and_best_only(tmp_path):
    """However often it saves, there are two folders with the files of one checkpoint each."""
    seen = []

    def evaluate(model):
        seen.append(files_of(tmp_path / "checkpoints"))
        return jagged(model)

    toy_train(tmp_path, toy_task(evaluate=evaluate), eval_every=1)
    both = {f"newest/{name}" for name in {*NEWEST, "history.jsonl"}} | {
        "best/model.safetensors", "best/checksums.json"}
    assert seen[0] == seen[1] == set()
    assert all(found == both for found in seen[2:]), seen
    assert files_of(tmp_path / "checkpoints") == both
    assert files_of(tmp_path) == {"history.jsonl"} | {f"checkpoints/{name}" for name in both}


def test_leftovers_of_a_killed_save_are_removed(tmp_path, undisturbed):
    """What a kill -9 left of a checkpoint that it broke off does not stay on the disk."""
    with pytest.raises(Crash):
        toy_train(tmp_path, toy_task(loss=stopping(6, None)))
    leftover = tmp_path / "checkpoints" / ".newest.999999.tmp"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"torn")
    model, state = toy_train(tmp_path)
    assert_same(tmp_path, model, state, undisturbed)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"newest", "best"}


def test_seconds_add_up(tmp_path):
    """A resumed training's seconds contain those of its first part."""
    with pytest.raises(Crash):
        toy_train(tmp_path, toy_task(loss=stopping(6, None)))
    path = tmp_path / "checkpoints/newest/state.json"
    path.write_text(path.read_text().replace('"seconds": 0.', '"seconds": 1000.'))
    path.with_name("checksums.json").write_text(checkpoint.json.dumps(
        {name: mark for name, mark in files.checksums(path.parent).items()
         if name != "checksums.json"}))
    _, state = toy_train(tmp_path)
    assert 1000 < state.seconds < 1100
    assert 1000 < read_json(path)["seconds"] <= state.seconds
