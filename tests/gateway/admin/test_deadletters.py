"""Dead letters: kept, listed, re-submitted exactly once, discarded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway.admin.deadletters import DeadLetters, finish_resubmissions
from headrace.gateway.ingest.decoding import StreamDecoder
from headrace.log.contract import DeadLetter, Group
from headrace.log.embedded.backend import open_reader, open_writer
from headrace.model.definitions import Column, Stream
from headrace.model.settings import Settings
from headrace.model.types import parse_type


def letters(gateway: Any, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.client.get(f"/v1/deadletters{query}").json()[
        "deadletters"
    ]
    return found


def test_resubmit_repaired_and_discard(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway()
    gateway.send(b'{"text":1}\n{"text":"fine"}\n{"weight":2}\nbroken', "notes")
    gateway.send(b"x", "transactions")
    assert [letter["position"] for letter in letters(gateway)] == [0, 2, 3, 0]
    assert [letter["stream"] for letter in letters(gateway, "?stream=transactions")] == [
        "transactions"
    ]
    page = gateway.client.get("/v1/deadletters?limit=2").json()
    assert page["next_after"] == page["deadletters"][-1]["number"]
    rest = gateway.client.get(f"/v1/deadletters?limit=2&after={page['next_after']}").json()
    assert len(rest["deadletters"]) == 2
    first, second, third, _ = [letter["number"] for letter in letters(gateway)]

    as_it_was = gateway.client.post("/v1/deadletters/resubmit", json={"numbers": [first]}).json()
    assert (as_it_was["accepted"], as_it_was["quarantined"]) == (0, 1)
    assert as_it_was["errors"][0]["number"] == first
    assert len(letters(gateway)) == 4

    body = {
        "numbers": [first, second, 999],
        "records": [{"text": "repaired"}, {"text": "also", "weight": 2}, {}],
    }
    answer = gateway.client.post("/v1/deadletters/resubmit", json=body).json()
    assert (answer["accepted"], answer["quarantined"]) == (2, 1)
    assert answer["errors"] == [{"number": 999, "reason": "no such dead letter"}]
    again = gateway.client.post("/v1/deadletters/resubmit", json=body).json()
    assert again["accepted"] == 0
    texts = sorted(row["text"] for row in gateway.stored("notes"))
    assert texts == ["also", "fine", "repaired"]

    assert gateway.client.post("/v1/deadletters/discard", json={"numbers": [third]}).json() == {
        "discarded": 1,
        "missing": [],
    }
    gone = gateway.client.post("/v1/deadletters/discard", json={"numbers": [99_999, third, 999]})
    assert gone.json() == {"discarded": 0, "missing": [third, 999, 99_999]}
    assert [letter["stream"] for letter in letters(gateway)] == ["transactions"]
    gateway.kill()
    gateway.start()
    assert [letter["stream"] for letter in letters(gateway)] == ["transactions"]


def test_a_letter_keeps_when_it_was_sent(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(
        definitions="CREATE STREAM clocked (n INT NOT NULL, at TIMESTAMP NOT NULL, sent TIMESTAMP)"
        " WATERMARK at LATE REVISE SENT sent;"
    )
    hour = 3_600_000_000
    sent = time.time_ns() // 1_000 - hour
    record = {"n": 1, "at": "2020-01-01T00:00:00Z"}
    gateway.send([{"n": "x"}], "clocked", headers={"Headrace-Sent-At": str(sent)})
    gateway.kill()
    gateway.start()
    numbers = [letter["number"] for letter in letters(gateway)]
    body = {"numbers": numbers, "records": [record]}
    assert gateway.client.post("/v1/deadletters/resubmit", json=body).json()["accepted"] == 1
    (row,) = gateway.stored("clocked")
    assert row["_quality"] == 1  # corrected, by the hour between sent and first received
    assert hour <= row["_skew"] < hour + 60_000_000


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"numbers":[]}', b'{"numbers":["x"]}', b'{"numbers":[-1]}',
     b'{"numbers":[1,1]}', b'{"numbers":[1],"records":[]}', b'{"numbers":[1],"more":1}'],
)  # fmt: skip
def test_bodies_that_do_not_say_which(shared_gateway: Any, body: bytes) -> None:
    answer = shared_gateway.client.post("/v1/deadletters/resubmit", content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-request")


NOTES = Stream("notes", (Column("text", parse_type("STRING"), nullable=False),))


class CrashError(Exception):
    """The process died here."""


def test_a_crash_between_storing_and_resolving_stores_nothing_twice(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    settings.data_directory.mkdir()
    decoders = {"notes": StreamDecoder(NOTES, settings.gateway)}
    loop = asyncio.new_event_loop()

    def opened() -> tuple[Any, Any]:
        directory = settings.log_directory
        writer = open_writer(directory, [NOTES], settings.log, settings.gateway)
        return writer, open_reader(directory, [NOTES])

    class DiesBeforeResolving:
        def __init__(self, writer: Any) -> None:
            self._writer = writer

        def __getattr__(self, name: str) -> Any:
            if name == "resolve_dead_letters":
                raise CrashError
            return getattr(self._writer, name)

    body = json.dumps({"numbers": [0], "records": [{"text": "repaired"}]}).encode()
    writer, reader = opened()
    writer.append(Group(dead=(DeadLetter("notes", 0, "broken", b"x", 0),)))
    job = DeadLetters(settings, reader, decoders, lambda *_: None).resubmit(body, loop)
    with pytest.raises(CrashError):
        job(DiesBeforeResolving(writer))
    assert (settings.data_directory / "resubmitting.json").exists()
    assert len(reader.dead_letters(None, -1, 10)) == 1

    # the same again before a restart: recognised by the letter's number, also with another record
    other = json.dumps({"numbers": [0], "records": [{"text": "other"}]}).encode()
    job = DeadLetters(settings, reader, decoders, lambda *_: None).resubmit(other, loop)
    with pytest.raises(CrashError):
        job(DiesBeforeResolving(writer))
    assert reader.ends("notes") == (1,)
    reader.close()
    writer.close()

    # a restart resolves it without being asked
    writer, reader = opened()
    finish_resubmissions(settings, writer, reader, decoders)
    assert list(reader.dead_letters(None, -1, 10)) == []
    assert reader.ends("notes") == (1,)
    assert not (settings.data_directory / "resubmitting.json").exists()
    reader.close()
    writer.close()
    loop.close()
