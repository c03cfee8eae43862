"""init, validate and doctor: what needs no running project."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import checks, exits
from headrace.cli.calls import gateway_url
from headrace.model.settings import GatewaySettings, Settings


@pytest.fixture
def project(tmp_path: Path, headrace: Callable[..., Any]) -> Path:
    assert headrace("init", tmp_path / "shop").code == 0
    return tmp_path / "shop"


def test_init_writes_a_project_that_validates(headrace: Callable[..., Any], project: Path) -> None:
    ended = headrace("validate", "--project", project, "--json")
    assert ended.code == 0
    assert ended.document["faults"] == []
    assert [s["name"] for s in ended.document["streams"]] == ["transactions"]
    assert [v["name"] for v in ended.document["views"]] == ["income", "income_by_user"]
    assert (project / ".gitignore").read_text() == ".headrace/\n"


def test_sample_events_are_recent_and_typed(project: Path) -> None:
    events = [json.loads(line) for line in (project / "events.ndjson").read_text().splitlines()]
    assert len(events) == 1_000
    assert set(events[0]) == {"id", "user_id", "amount", "currency", "status", "created_at"}
    times = [datetime.fromisoformat(event["created_at"]) for event in events]
    assert 20 < (max(times) - min(times)).total_seconds() < 60
    for event in events:
        digit = int(event["user_id"][0])
        assert event["amount"] == f"{10 * digit or 100}.00"


def test_init_leaves_what_is_there_alone(headrace: Callable[..., Any], project: Path) -> None:
    ended = headrace("init", project)
    assert ended.code == exits.MISTAKE
    assert "is not empty" in ended.err
    assert headrace("init", project / "1st").code == exits.MISTAKE


def test_validate_shows_every_fault_with_its_line(
    headrace: Callable[..., Any], project: Path
) -> None:
    file = project / "definitions" / "wrong.sql"
    file.write_text(
        "CREATE MATERIALIZED VIEW a AS SELECT count(*) AS n FROM nowhere;\n"
        "CREATE MATERIALIZED VIEW b AS SELECT summ(amount) AS n FROM transactions;\n"
    )
    ended = headrace("validate", "--project", project)
    assert ended.code == exits.CHECK_FAILED
    assert "wrong.sql:1:" in ended.err
    assert "wrong.sql:2:" in ended.err
    assert "^" in ended.err
    faults = headrace("validate", "--project", project, "--json").document
    assert faults["ok"] is False
    assert [fault["line"] for fault in faults["faults"]] == [1, 2]
    assert all(fault["hint"] and fault["column"] for fault in faults["faults"])


def test_validate_lists_a_table_once(headrace: Callable[..., Any], project: Path) -> None:
    (project / "definitions" / "tables.sql").write_text(
        "CREATE TABLE users (id STRING, name STRING, PRIMARY KEY (id));\n"
        "CREATE TABLE newest FROM transactions KEY (user_id, currency) SEQUENCE BY created_at;\n"
    )
    shown = headrace("validate", "--project", project).out.splitlines()
    assert [line.strip("│ ").split() for line in shown if "table" in line] == [
        ["table", "│", "newest", "│", "from", "transactions,", "key", "user_id,", "currency"],
        ["table", "│", "users", "│", "posted,", "key", "id"],
    ]
    assert not [line for line in shown if "users" in line and "table" not in line]
    told = headrace("validate", "--project", project, "--json").document
    assert told["tables"] == [
        {"name": "newest", "source": "transactions", "key": ["user_id", "currency"]},
        {"name": "users", "source": None, "key": ["id"]},
    ]
    assert [one["name"] for one in told["streams"]] == ["transactions"]
    assert [one["name"] for one in told["views"]] == ["income", "income_by_user"]


def test_validate_names_the_tables_that_a_view_joins(
    headrace: Callable[..., Any], project: Path, joins_run: None
) -> None:
    (project / "definitions" / "names.sql").write_text(
        "CREATE TABLE users (id STRING, friend STRING, PRIMARY KEY (id));\n"
        "CREATE MATERIALIZED VIEW named AS SELECT u.id, f.id AS friend FROM transactions "
        "JOIN users u ON u.id = user_id LEFT JOIN users f ON f.id = u.friend;\n"
    )
    shown = headrace("validate", "--project", project).out
    assert "from transactions, joins users " in shown
    told = headrace("validate", "--project", project, "--json").document
    joins = {view["name"]: view["joins"] for view in told["views"]}
    assert joins == {"income": [], "income_by_user": [], "named": ["users"]}


def test_doctor_finds_this_machine_fit(headrace: Callable[..., Any], project: Path) -> None:
    (project / "headrace.toml").write_text("[gateway]\nport = 0\n")
    ended = headrace("doctor", "--project", project, "--json")
    assert ended.code == 0, ended.out
    states = {check["name"]: check["state"] for check in ended.document["checks"]}
    assert {"python", "packages", "java", "port", "disk", "memory", "clock"} <= set(states)
    assert "java" in headrace("doctor", "--project", project).out


def test_doctor_sees_a_port_in_use(headrace: Callable[..., Any], project: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        (project / "headrace.toml").write_text(f"[gateway]\nport = {port}\n")
        ended = headrace("doctor", "--project", project, "--json")
        assert ended.code == exits.CHECK_FAILED
        found = {check["name"]: check for check in ended.document["checks"]}
        assert found["port"]["state"] == "missing"
        assert found["port"]["hint"]


def test_doctor_sees_a_missing_package(
    headrace: Callable[..., Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PACKAGES", ("headrace", "no-such-package"))
    ended = headrace("doctor", "--project", project, "--json")
    assert ended.code == exits.CHECK_FAILED
    assert "no-such-package" in ended.out


def test_version(headrace: Callable[..., Any]) -> None:
    assert headrace("--version").out.startswith("headrace 0.")


def test_tokens_are_made_listed_and_revoked(headrace: Callable[..., Any], project: Path) -> None:
    where = ("--project", project)
    assert "everyone" in headrace("token", "list", *where).out
    made = headrace("token", "create", "till", "--scope", "ingest:*", "--scope", "query", *where)
    secret = made.out.strip()
    assert len(secret) > 40
    assert secret not in (project / ".headrace" / "tokens.json").read_text()
    listed = headrace("token", "list", *where, "--json").document
    assert listed == {"tokens": [{"name": "till", "scopes": ["ingest:*", "query"]}]}
    assert headrace("token", "create", "till", "--scope", "query", *where).code == exits.MISTAKE
    assert headrace("token", "create", "x", "--scope", "all", *where).code == exits.MISTAKE
    assert headrace("token", "revoke", "till", *where).code == 0
    assert headrace("token", "revoke", "till", *where).code == exits.MISTAKE
    assert "nobody" in headrace("token", "list", *where).out


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("[::1]", "http://[::1]:80"),
        ("[::]", "http://127.0.0.1:80"),
    ],
)
def test_a_gateway_is_called_where_its_settings_put_it(tmp_path: Path, host: str, url: str) -> None:
    settings = Settings(tmp_path, gateway=GatewaySettings(host=host, port=80))
    assert gateway_url(settings) == url
