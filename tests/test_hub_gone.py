"""The Hub goes away in the middle of a download: one line, nothing half-written, then it goes on.

python -m pytest tests/test_hub_gone.py

A stand-in server on this machine gives a model's or a data set's files, as huggingface_hub,
transformers and datasets ask for them, and breaks the connection within one of them.
"""

import hashlib
import json
import shutil
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import huggingface_hub.constants
import pandas as pd
import pytest
from refusal import contents, refusal
from toy import done, only, read_csv, small

COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository, whatever its name; `breaks` is the file in which it goes away."""

    def do_GET(self):
        path, root = self.path.partition("?")[0], self.server.root
        if self.server.is_gone:
            return
        if "/resolve/" in path:
            self.give(root / path.split("/resolve/")[1].partition("/")[2])
        elif "/tree/" in path:
            sizes = {file.name: file.stat().st_size for file in sorted(root.iterdir())}
            found = [{"type": "file", "path": name, "size": size, "oid": "a" * 40}
                     for name, size in sizes.items()]
            at_root = path.endswith((COMMIT, "main"))
            self.answer(200 if at_root else 404, json.dumps(found if at_root else {}).encode(),
                        {} if at_root else {"X-Error-Code": "EntryNotFound"})
        else:
            self.answer(200, json.dumps({
                "id": "/".join(path.split("/")[3:5]), "sha": COMMIT, "private": False,
                "siblings": [{"rfilename": file.name} for file in root.iterdir()]}).encode())

    do_HEAD = do_GET

    def give(self, file):
        """A file, or what is left of it; half of it and no more of anything, if it is the one."""
        head = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not file.is_file():
            return self.answer(404, b"", head | {"X-Error-Code": "EntryNotFound"})
        data, asked = file.read_bytes(), self.headers["Range"]
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        head |= {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if asked:
            head |= {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        self.server.is_gone = self.command == "GET" and file.name == self.server.breaks
        return self.answer(206 if asked else 200, data[start:], head)

    def answer(self, code, body, head=()):
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **dict(head)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:len(body) // 2] if self.server.is_gone else body)
        if self.server.is_gone and self.server.is_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The stand-in, with an empty cache of the libraries that ask it, and no wait between tries."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.root, server.breaks = tmp_path / "repo", ""
    server.is_gone = server.is_reset = False
    server.root.mkdir()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, cache = f"http://127.0.0.1:{server.server_port}", tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE",
                        address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "datasets")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(cache / "modules"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    huggingface_hub.close_session()
    yield server
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()


def back(hub) -> None:
    """The Hub is there again."""
    hub.breaks, hub.is_gone = "", False


@pytest.mark.parametrize(("name", "is_reset"), [
    ("config.json", False), ("model.safetensors", False), ("model.safetensors", True),
    ("tokenizer.json", True)])
def test_encoder(command, competition, make_encoder, hub, tmp_path, name, is_reset):
    """The same command trains from it as from a folder, once it is whole."""
    shutil.copytree(make_encoder(), hub.root, dirs_exist_ok=True)
    hub.breaks, hub.is_reset = name, is_reset
    words = ["stage=simcse", *small("me/encoder", "encoder.pooling=mean", "simcse.max_steps=1")]
    said = refusal(command(*words))
    assert said.startswith("encoder.path=me/encoder: the Hub could not give this model (")
    assert "Can't load" not in said  # but what the network said
    assert hub.is_gone
    assert not list((tmp_path / "runs").glob("*/*/model"))
    assert all(file.stat().st_size == (hub.root / file.name).stat().st_size
               for file in (tmp_path / "cache").glob("hub/*/snapshots/*/*"))
    back(hub)
    done(command, *words)
    weights = only(tmp_path / "runs/simcse") / "model/model.safetensors"
    done(command, *words, f"encoder.path={make_encoder()}", "runs_dir=local")
    local = only(tmp_path / "local/simcse") / "model/model.safetensors"
    assert weights.read_bytes() == local.read_bytes()


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("name", ["train.parquet", "validation.parquet"])
def test_data_set(command, hub, tmp_path, name, is_reset):
    """No CSV of a part; the same command writes all of them."""
    for part, rows in (("train", 30), ("validation", 4), ("test", 5)):
        pd.DataFrame({"genre": "news", "score": [place % 6 * 1.0 for place in range(rows)],
                      "sentence1": [f"문장 {place}" for place in range(rows)],
                      "sentence2": [f"다른 {place}" for place in range(rows)]}).to_parquet(
            hub.root / f"{part}.parquet")
    hub.breaks, hub.is_reset = name, is_reset
    words = ["stage=fetch", "fetch.name=korsts", "fetch.dir=data"]
    said = refusal(command(*words))
    assert said.startswith("fetch.name=korsts: the Hub could not give dkoterwa/kor-sts (")
    assert hub.is_gone
    assert not [file for file in contents(tmp_path) if file.startswith("data")]
    back(hub)
    done(command, *words)
    assert [len(read_csv(Path("data") / f"{part}.csv")) for part in ("train", "dev", "test")] == [
        30, 4, 5]
    assert read_csv(Path("data/train.csv"))["sentence_1"][29] == "문장 29"
