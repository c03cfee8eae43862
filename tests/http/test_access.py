"""Tokens, scopes, and whose requests are served without any."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.http.access import Access, is_loopback
from headrace.http.tokens import create_token, list_tokens, load_tokens, revoke_token
from headrace.model.errors import SettingsError
from headrace.model.settings import GatewaySettings, Settings

NOTE = b'{"text":"x"}'


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_tokens_are_stored_hashed_and_revoked(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    assert load_tokens(settings.tokens_file) is None
    assert list_tokens(settings) == []
    secret = create_token(settings, "shop", ["ingest:notes", "query"])
    text = settings.tokens_file.read_text()
    assert secret not in text
    assert secret[3:] not in text
    assert stat.S_IMODE(settings.tokens_file.stat().st_mode) == 0o600
    tokens = load_tokens(settings.tokens_file)
    assert tokens is not None
    assert tokens.verify(secret) == list_tokens(settings)[0]
    assert tokens.verify(secret + "x") is None
    assert tokens.verify("x" * 100_000) is None
    assert revoke_token(settings, "nobody") is False
    assert revoke_token(settings, "shop") is True
    left = load_tokens(settings.tokens_file)
    assert left is not None  # an empty list lets nobody in
    assert left.verify(secret) is None


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("", ["query"]), ("a b", ["query"]), ("a", []), ("a", ["everything"]), ("a", ["ingest:"])],
)
def test_wrong_names_and_scopes(tmp_path: Path, name: str, scopes: list[str]) -> None:
    with pytest.raises(SettingsError):
        create_token(Settings(tmp_path), name, scopes)


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    create_token(Settings(tmp_path), "a", ["query"])
    with pytest.raises(SettingsError, match="exists"):
        create_token(Settings(tmp_path), "a", ["query"])


@pytest.mark.parametrize(
    "content", ["{", "{}", "[1]", '[{"name": 1}]', '[{"name":"a","hash":"b"}]']
)
def test_a_damaged_file_is_said_without_being_quoted(tmp_path: Path, content: str) -> None:
    settings = Settings(tmp_path)
    settings.data_directory.mkdir()
    settings.tokens_file.write_text(content)
    if content == "{}":
        assert load_tokens(settings.tokens_file) is not None
        return
    with pytest.raises(SettingsError):
        load_tokens(settings.tokens_file)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.9.9.9", True),
     ("0.0.0.0", False), ("::", False), ("192.168.1.5", False), ("example.org", False)],
)  # fmt: skip
def test_binding_beyond_loopback_needs_tokens(tmp_path: Path, host: str, local: bool) -> None:
    assert is_loopback(host) is local
    settings = Settings(tmp_path, gateway=GatewaySettings(host=host))
    if local:
        assert Access(settings).has_tokens is False
    else:
        with pytest.raises(SettingsError, match="no tokens"):
            Access(settings)
    create_token(settings, "a", ["query"])
    assert Access(settings).has_tokens is True


def test_scopes_over_http(make_gateway: Callable[..., Any], until: Callable[..., None]) -> None:
    gateway = make_gateway()
    settings = gateway.settings
    assert gateway.send(NOTE, "notes").status_code == 200
    ingest = create_token(settings, "ingest", ["ingest:notes"])
    until(lambda: gateway.send(NOTE, "notes").status_code == 401)
    everything = create_token(settings, "everything", ["ingest:*", "query", "admin", "sql"])
    until(lambda: gateway.send(NOTE, "notes", bearer(everything)).status_code == 200)

    missing = gateway.send(NOTE, "notes")
    assert missing.headers["www-authenticate"].startswith("Bearer")
    assert missing.json()["code"] == "token-missing"
    assert gateway.send(NOTE, "notes", bearer("wrong")).json()["code"] == "token-unknown"
    assert gateway.send(NOTE, "notes", bearer(ingest)).status_code == 200
    refused = gateway.send(NOTE, "transactions", bearer(ingest))
    assert (refused.status_code, refused.json()["code"]) == (403, "scope-missing")

    reading = ("/v1/streams", "/v1/deadletters", "/metrics", "/v1/status", "/v1/views")
    for path in (*reading, "/v1/ledger", "/v1/streams/notes/late"):
        assert gateway.client.get(path).status_code == 401
        assert gateway.client.get(path, headers=bearer(ingest)).status_code == 403
        assert gateway.client.get(path, headers=bearer(everything)).status_code in (200, 503)
    for path in ("/healthz", "/openapi.json"):
        assert gateway.client.get(path).status_code == 200

    revoke_token(settings, "ingest")
    until(lambda: gateway.send(NOTE, "notes", bearer(ingest)).status_code == 401)
    settings.tokens_file.unlink()
    assert gateway.send(NOTE, "notes").status_code == 401  # a lost file opens nothing
    assert gateway.stop() == 0
    for secret in (ingest, everything):
        assert secret not in gateway.log_text()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "attacker.example"}, 421, "foreign-host"),
        ({"host": "attacker.example:8080"}, 421, "foreign-host"),
        ({"host": "localhost.attacker.example"}, 421, "foreign-host"),
        ({"origin": "https://attacker.example"}, 403, "foreign-origin"),
        ({"origin": "null"}, 403, "foreign-origin"),
        ({"host": "localhost:1"}, 200, None),
        ({"host": "[::1]:8080"}, 200, None),
        ({"host": "LOCALHOST"}, 200, None),
        ({"origin": "http://localhost:3000"}, 200, None),
    ],
)
def test_without_tokens_only_this_machine_is_served(
    shared_gateway: Any, headers: dict[str, str], status: int, code: str | None
) -> None:
    answer = shared_gateway.send(NOTE, "notes", headers)
    assert answer.status_code == status
    if code:
        assert answer.json()["code"] == code
    assert shared_gateway.client.get("/v1/streams", headers=headers).status_code == status


def test_problem_documents_are_plain_json(shared_gateway: Any) -> None:
    answer = shared_gateway.send(NOTE, 'x"y\\z%00')
    assert json.loads(answer.content)["code"] == "unknown-stream"
