"""Pushing to the Hub: a stand-in server on this machine takes the folder or refuses it.

python -m pytest tests/test_upload.py
"""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import huggingface_hub.hf_api
import pytest

from pipeline.errors import UserError
from pipeline.upload import check_repo, push

TOKEN = "hf_secretsecretsecretsecretsecret"


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub's API as a small commit needs; remembers what it was sent."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        if self.path == self.server.refused:
            return self.answer(403, {"error": "You are not allowed\nto write here"})
        if self.path == "/api/repos/create":
            return self.answer(200, {"url": f"{self.server.address}/me/model"})
        if self.path.startswith("/api/models/me/model/preupload/"):
            return self.answer(200, {"files": [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]]})
        return self.answer(200, {"success": True, "commitOid": "a" * 40, "hookOutput": "",
                                 "commitUrl": f"{self.server.address}/me/model/commit/aaaa"})

    def do_GET(self):
        self.server.asked.append((self.path, self.headers["Authorization"], b""))
        self.answer(404, {"error": "none"})

    do_HEAD = do_GET

    def answer(self, code, content):
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, with a login to it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.asked, server.refused = [], None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    huggingface_hub.close_session()
    yield server
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    """A folder to push."""
    (tmp_path / "model" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "model" / "README.md").write_text("---\nlanguage: ko\n---\n# 모델\n")
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.mark.parametrize("is_private", [True, False])
def test_push(hub, folder, is_private):
    """Every file arrives in one commit, in a repository that is private unless asked otherwise."""
    check_repo("me/model")
    assert push(folder, "me/model", is_private) == f"{hub.address}/me/model/commit/aaaa"
    created = json.loads(next(body for path, _, body in hub.asked if path == "/api/repos/create"))
    assert created["name"] == "model"
    assert created["organization"] == "me"
    assert created.get("private", created.get("visibility") == "private") == is_private
    commits = [body for path, _, body in hub.asked if "/commit/" in path]
    assert len(commits) == 1
    lines = [json.loads(line)["value"] for line in commits[0].splitlines()]
    sent = {line["path"]: base64.b64decode(line["content"]) for line in lines if "path" in line}
    assert sent == {path.relative_to(folder).as_posix(): path.read_bytes()
                    for path in folder.rglob("*") if path.is_file()}
    assert {mark for path, mark, _ in hub.asked if path.startswith("/api/repos")} == {
        f"Bearer {TOKEN}"}


@pytest.mark.parametrize("refused", ["/api/repos/create", "/api/models/me/model/commit/main"])
def test_a_refusing_hub(hub, folder, refused):
    """One line, without the token; the folder is whole."""
    hub.refused = refused
    with pytest.raises(UserError) as error:
        push(folder, "me/model", True)
    said = str(error.value)
    assert said.startswith("export.repo=me/model: the Hub did not take the folder (")
    assert "403" in said
    assert "\n" not in said
    assert TOKEN not in said
    assert (folder / "README.md").exists()


def test_a_hub_that_is_not_there(hub, folder, monkeypatch):
    """Nobody listens at the address."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="the Hub did not take the folder"):
        push(folder, "me/model", True)


def test_no_login(monkeypatch, tmp_path):
    """Said before any work."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UserError, match="expected a login to the Hub, got none"):
        check_repo("me/model")
