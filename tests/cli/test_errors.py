"""What a user sees of a mistake: a message, a hint and an exit code, never a traceback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import exits
from headrace.model import errors


@pytest.fixture
def project(tmp_path: Path, headrace: Callable[..., Any]) -> Path:
    assert headrace("init", tmp_path / "shop").code == 0
    return tmp_path / "shop"


class _Problem(BaseHTTPRequestHandler):
    """Answers with the status that the path begins with."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        body = b'{"detail": "no such luck", "hint": "try harder", "code": "luck"}'
        if status == 200:
            body = b"<html>"
        self.send_response(status)
        self.send_header("content-type", "application/problem+json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    answering = HTTPServer(("127.0.0.1", 0), _Problem)
    thread = threading.Thread(target=answering.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{answering.server_port}"
    answering.shutdown()
    answering.server_close()
    thread.join()


def test_no_project(
    headrace: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = headrace("status")
    assert ended.code == exits.MISTAKE
    assert "no headrace.toml in" in ended.err
    assert "headrace init NAME" in ended.err
    assert "Traceback" not in ended.err


def test_the_project_is_searched_upwards(
    headrace: Callable[..., Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(project / "deep" / "er")
    (project / "headrace.toml").write_text("[gateway]\nport = 1\n")
    assert "127.0.0.1:1:" in headrace("status").err


@pytest.mark.parametrize("asked", [("query", "SELECT 1"), ("tail", "income")])
def test_unreachable(headrace: Callable[..., Any], asked: tuple[str, str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        ended = headrace(*asked, "--url", url)
    assert ended.code == exits.UNREACHABLE
    assert f"no answer from {url}" in ended.err


@pytest.mark.parametrize(("status", "code"), [(404, exits.MISTAKE), (503, exits.UNREACHABLE)])
def test_refused(headrace: Callable[..., Any], server: str, status: int, code: int) -> None:
    ended = headrace("status", "--url", f"{server}/{status}")
    assert ended.code == code
    assert ended.err == f"error: HTTP {status}: no such luck\n  hint: try harder\n"


def test_something_else_answers(headrace: Callable[..., Any], server: str) -> None:
    ended = headrace("status", "--url", f"{server}/200")
    assert ended.code == exits.UNREACHABLE
    assert "something other than JSON" in ended.err


def test_wrong_url(headrace: Callable[..., Any]) -> None:
    assert headrace("status", "--url", "localhost:8080").code == exits.MISTAKE


def test_wrong_setting(headrace: Callable[..., Any], project: Path) -> None:
    (project / "headrace.toml").write_text("[gateway]\nprot = 1\n")
    ended = headrace("up", project)
    assert ended.code == exits.MISTAKE
    assert "unknown setting gateway.prot" in ended.err


def test_port_taken(headrace: Callable[..., Any], project: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        (project / "headrace.toml").write_text(f"[gateway]\nport = {port}\n")
        ended = headrace("up", project)
    assert ended.code == exits.MISTAKE
    assert f"cannot listen on 127.0.0.1:{port}" in ended.err


def test_up_refuses_faults_before_it_starts_anything(
    headrace: Callable[..., Any], project: Path
) -> None:
    (project / "definitions" / "shop.sql").write_text("CREATE STREAM s (a NUMBR);\n")
    ended = headrace("up", project)
    assert ended.code == exits.MISTAKE
    assert "shop.sql:1:" in ended.err
    assert not (project / ".headrace").exists()


def test_only_one_up(headrace: Callable[..., Any], project: Path) -> None:
    from headrace.cli.up import _only_one
    from headrace.model.settings import load_settings

    with _only_one(load_settings(project)):
        ended = headrace("up", project)
    assert ended.code == exits.MISTAKE
    assert "up already" in ended.err


def test_repaired_records_must_fit(headrace: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "repaired.ndjson"
    file.write_text("{}\n")
    words = ("deadletters", "resubmit", "1", "2", "--url", "http://127.0.0.1:1", "--repaired")
    assert "1 records for 2 numbers" in headrace(*words, file).err
    file.write_text("{\n{\n")
    assert "one JSON record per line" in headrace(*words, file).err
    assert headrace(*words, tmp_path / "absent").code == exits.MISTAKE


def test_every_error_has_an_exit_code() -> None:
    assert exits.exit_code(errors.LogCorruptError("x")) == exits.FAILED
    assert exits.exit_code(errors.DefinitionErrors([])) == exits.MISTAKE
    assert exits.exit_code(errors.BufferFullError("x")) == exits.MISTAKE
    assert exits.exit_code(errors.UnreachableError("x")) == exits.UNREACHABLE


def test_a_defect_is_shown_whole(
    headrace: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.cli import checks

    def broken(settings: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr(checks, "_clock", broken)
    ended = headrace("doctor")
    assert ended.code == exits.DEFECT
    assert "RuntimeError: oh" in ended.err


def test_a_verb_that_does_not_exist_suggests_one(headrace: Callable[..., Any]) -> None:
    ended = headrace("valdate")
    assert ended.code == exits.MISTAKE
    assert "Did you mean 'validate'" in ended.err
