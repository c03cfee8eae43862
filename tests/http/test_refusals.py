"""Every refusal: its status, its code, and that nothing was stored."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow as pa
import pytest

SMALL = """
request_bytes_max = 20000
inflated_bytes_max = 100000
request_records_max = 100
line_bytes_max = 2000
request_seconds_max = 1
"""
NOTE = b'{"text":"x"}'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, shared_gateway: Any) -> Iterator[Any]:
    gateway = type(shared_gateway)(tmp_path_factory.mktemp("small") / "shop", SMALL).start()
    yield gateway
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log_text()


def bomb(size: int) -> bytes:
    return gzip.compress(b" " * size)


REFUSED: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "no body": (b"", {}, 400, "empty-body"),
    "blank body": (b" \n ", {}, 400, "empty-body"),
    "array not closed": (b'[{"text":"x"}', {}, 400, "bad-framing"),
    "array with a fault": (b'[{"text":"x"},}]', {}, 400, "bad-framing"),
    "array too deep": (b"[" * 20_000, {}, 400, "bad-framing"),
    "not gzip": (NOTE, {"content-encoding": "gzip"}, 400, "bad-encoding"),
    "gzip cut off": (gzip.compress(NOTE)[:-9], {"content-encoding": "gzip"}, 400, "bad-encoding"),
    "not zstd": (NOTE, {"content-encoding": "zstd"}, 400, "bad-encoding"),
    "zstd cut off": (
        pa.Codec("zstd").compress(NOTE * 50, asbytes=True)[:-5],
        {"content-encoding": "zstd"},
        400,
        "bad-encoding",
    ),
    "gzip bomb": (bomb(5_000_000), {"content-encoding": "gzip"}, 413, "inflated-too-large"),
    "zstd bomb": (
        pa.Codec("zstd").compress(b" " * 5_000_000, asbytes=True),
        {"content-encoding": "zstd"},
        413,
        "inflated-too-large",
    ),
    "too many bytes": (b"x" * 20_001, {}, 413, "body-too-large"),
    "too many lines": (b"\n".join([NOTE] * 101), {}, 413, "too-many-records"),
    "too many in an array": (b"[" + b",".join([NOTE] * 101) + b"]", {}, 413, "too-many-records"),
    "media type": (NOTE, {"content-type": "text/xml"}, 415, "unsupported-media-type"),
    "charset": (
        NOTE,
        {"content-type": "application/json; charset=latin1"},
        415,
        "unsupported-media-type",
    ),
    "encoding": (NOTE, {"content-encoding": "br"}, 415, "unsupported-encoding"),
    "key too long": (NOTE, {"idempotency-key": "k" * 256}, 422, "bad-retry-key"),
    "producer too long": (
        NOTE,
        {"headrace-producer": "p" * 129, "headrace-sequence": "0"},
        422,
        "bad-retry-key",
    ),
    "no sequence": (NOTE, {"headrace-producer": "p"}, 422, "bad-retry-key"),
    "sequence": (
        NOTE,
        {"headrace-producer": "p", "headrace-sequence": "-1"},
        422,
        "bad-retry-key",
    ),
    "epoch": (
        NOTE,
        {"headrace-producer": "p", "headrace-sequence": "1", "headrace-epoch": "x"},
        422,
        "bad-retry-key",
    ),
    "gzip without its header": (gzip.compress(NOTE), {}, 415, "unsupported-encoding"),
    "zstd without its header": (
        pa.Codec("zstd").compress(NOTE, asbytes=True),
        {"content-type": "application/x-ndjson"},
        415,
        "unsupported-encoding",
    ),
    "both keys": (
        NOTE,
        {"headrace-producer": "p", "headrace-sequence": "1", "idempotency-key": "k"},
        422,
        "bad-retry-key",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_whole(small: Any, what: str) -> None:
    body, headers, status, code = REFUSED[what]
    answer = small.send(body, "notes", headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["type"] == f"https://headrace.dev/errors/{code}"
    assert problem["title"]
    assert problem["detail"]
    assert small.stored("notes") == []


def test_the_hint_names_the_missing_content_encoding(shared_gateway: Any) -> None:
    dead = shared_gateway.counts("notes")["dead"]
    answer = shared_gateway.send(gzip.compress(b"\n".join([NOTE] * 50)), "notes")
    assert answer.json()["hint"] == "set the header Content-Encoding: gzip"
    assert shared_gateway.counts("notes")["dead"] == dead


def test_a_chunked_body_is_cut_at_the_bound(small: Any) -> None:
    sent = []

    def endless() -> Iterator[bytes]:
        for _ in range(1_000):
            sent.append(1)
            yield b"x" * 10_000

    try:
        answer = small.client.post("/v1/events?name=notes", content=endless())
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # the server has answered and closed while we were still sending
    assert len(sent) < 1_000


CHUNK = b"d\r\n" + NOTE + b"\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [[], [CHUNK], [CHUNK, CHUNK], [CHUNK, CHUNK[:7]], [CHUNK, b"zz\r\n"], [CHUNK, b"0\r\n"]],
)
def test_a_chunked_body_that_is_cut_off_is_not_stored(
    small: Any,
    sent: list[bytes],
    until: Callable[..., None],
    until_taken: Callable[..., None],
) -> None:
    answered = small.client.get("/metrics").text
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as cut:
        cut.sendall(
            b"POST /v1/events?name=notes HTTP/1.1\r\nhost: localhost\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for part in sent:
            cut.sendall(part)
            until_taken(cut)
    before = _refused(answered)
    until(lambda: _refused(small.client.get("/metrics").text) > before)
    assert small.stored("notes") == []


def _refused(metrics: str) -> float:
    found = re.search(r'responses_total\{status="400"\} (\S+)', metrics)
    return float(found.group(1)) if found else 0.0


def test_a_chunked_body_is_stored_whole(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway()
    answer = gateway.client.post("/v1/events?name=notes", content=iter([NOTE, b"\n", NOTE]))
    assert answer.json()["accepted"] == 2


def test_a_body_shorter_than_announced_is_not_stored(
    small: Any, until: Callable[..., None]
) -> None:
    before = _refused(small.client.get("/metrics").text)
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as cut:
        cut.sendall(
            b"POST /v1/events?name=notes HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: 50\r\n\r\n" + NOTE
        )
    until(lambda: _refused(small.client.get("/metrics").text) > before)
    assert small.stored("notes") == []


def test_long_and_deep_records_are_quarantined_with_their_beginning(make_gateway: Any) -> None:
    gateway = make_gateway(SMALL)
    long = b'{"text":"' + b"x" * 3_000 + b'"}'
    answer = gateway.send(b"\n".join([NOTE] * 20 + [long]), "notes").json()
    assert (answer["accepted"], answer["quarantined"]) == (20, 1)
    letter = gateway.client.get("/v1/deadletters").json()["deadletters"][0]
    assert len(letter["raw"]) == 2_000
    assert "3011 bytes" in letter["reason"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/events?name=nowhere", 404, "unknown-stream"),
        ("POST", "/v1/events", 404, "unknown-stream"),
        ("GET", "/v1/events?name=notes", 405, "method-not-allowed"),
        ("POST", "/v1/streams", 405, "method-not-allowed"),
        ("GET", "/nowhere", 404, "unknown-path"),
        ("GET", "/v1/views/a/b", 404, "unknown-path"),
        ("GET", "/v1/deadletters?limit=0", 422, "bad-parameter"),
        ("GET", "/v1/deadletters?after=x", 422, "bad-parameter"),
        ("GET", "/v1/deadletters?stream=nowhere", 404, "unknown-stream"),
        ("GET", "/v1/views", 503, "engine-away"),
        ("GET", "/v1/views/income", 503, "engine-away"),
        ("POST", "/v1/sql", 503, "engine-away"),
        ("GET", "/readyz", 503, "engine-away"),
    ],
)
def test_paths(shared_gateway: Any, method: str, path: str, status: int, code: str) -> None:
    content = NOTE if method == "POST" else None
    answer = shared_gateway.client.request(method, path, content=content)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"] in ("GET", "POST")
    if status == 503:
        assert int(answer.headers["retry-after"]) > 0


def test_without_an_engine_the_status_says_so(shared_gateway: Any) -> None:
    status = shared_gateway.client.get("/v1/status").json()
    assert status["engine"]["state"] == "down"
    assert "not started" in status["engine"]["reason"]
    assert status["gateway"]["state"] == "up"
    assert b"headrace_gateway_events_total" in shared_gateway.client.get("/metrics").content


def test_a_slow_client_is_cut(small: Any) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as slow:
        slow.sendall(
            b"POST /v1/events?name=notes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
        )
        answer = slow.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"too-slow" in answer
        while slow.recv(65_536):
            pass  # and the connection is closed


def test_slow_headers_are_cut(small: Any) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as slow:
        slow.sendall(b"POST /v1/events?name=notes HTTP/1.1\r\nhost: local")
        while slow.recv(65_536):
            pass


def test_a_full_queue_is_429_and_recovers(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway("queue_bytes_max = 30000\nrequest_bytes_max = 25000\n")
    half = (
        b"POST /v1/events?name=notes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000\r\n\r\n"
    )
    deadline = time.monotonic() + 60
    status = 0
    while status != 429:  # whichever of the two comes second is refused
        assert time.monotonic() < deadline
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as holding:
            holding.sendall(half)
            answer = gateway.send(b"\n".join([NOTE] * 1_000), "notes")
            status = answer.status_code
    assert answer.json()["code"] == "queue-full"
    assert int(answer.headers["retry-after"]) > 0
    deadline = time.monotonic() + 60
    while gateway.send(b"\n".join([NOTE] * 1_000), "notes").status_code != 200:
        assert time.monotonic() < deadline
    assert gateway.stop() == 0


def test_a_full_log_is_503_for_its_stream_alone(make_gateway: Callable[..., Any]) -> None:
    definitions = """
    CREATE STREAM full (text STRING NOT NULL) RETAIN UP TO 1 MB;
    CREATE STREAM notes (text STRING NOT NULL);
    """
    gateway = make_gateway(definitions=definitions)
    body = b"\n".join([b'{"text":"' + b"x" * 1_000 + b'"}'] * 500)
    statuses = []
    for _ in range(20):
        answer = gateway.send(body, "full")
        statuses.append(answer.status_code)
        if answer.status_code == 503:
            break
    assert statuses[0] == 200
    assert statuses[-1] == 503
    assert answer.json()["code"] == "log-full"
    assert int(answer.headers["retry-after"]) > 0

    def send(stream: str) -> set[tuple[str, int]]:
        with httpx.Client(base_url=gateway.url, timeout=60) as client:
            url = f"/v1/events?name={stream}"
            return {(stream, client.post(url, content=body).status_code) for _ in range(10)}

    with ThreadPoolExecutor(8) as pool:
        results = set().union(*pool.map(send, ("notes", "full") * 4))
    assert results == {("notes", 200), ("full", 503)}
    assert gateway.client.get("/healthz").status_code == 200


def test_a_second_gateway_and_a_taken_port_are_refused(
    make_gateway: Callable[..., Any],
) -> None:
    gateway = make_gateway()
    other = type(gateway)(gateway.directory)
    with pytest.raises(AssertionError, match="is held by process"):
        other.start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway.stop()
        (gateway.directory / "headrace.toml").write_text(f"[gateway]\nport = {port}\n")
        with pytest.raises(AssertionError, match="cannot be listened on"):
            gateway.start()


def test_a_signal_ends_it_with_everything_answered(
    make_gateway: Callable[..., Any], until: Callable[..., None]
) -> None:
    gateway = make_gateway()
    answers: list[int] = []
    lock = threading.Lock()

    def send() -> None:
        while True:
            try:
                with httpx.Client(base_url=gateway.url, timeout=20) as client:
                    answer = client.post("/v1/events?name=notes", content=NOTE)
            except httpx.TransportError:
                return
            if answer.status_code != 200:
                assert answer.json()["code"] == "stopping"
                return
            with lock:
                answers.append(json.loads(answer.content)["accepted"])

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send) for _ in range(4)]
        try:
            until(lambda: len(answers) >= 50)
        finally:
            stopped = gateway.stop()
    for each in sending:
        each.result()
    assert stopped == 0
    assert len(gateway.stored("notes")) >= sum(answers)
    assert "Traceback" not in gateway.log_text()
    assert "panic" not in gateway.log_text()
