"""`headrace load` against a real gateway; the engine's part is a small HTTP server."""

from __future__ import annotations

import gzip
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gateway_fixtures import make_gateway

from headrace.loading import files, lacking
from headrace.loading.files import STDIN
from headrace.loading.load import Loaded, Source, begin, load
from headrace.loading.sender import Sender
from headrace.loading.target import target_of

__all__ = ["make_gateway"]

pytestmark = pytest.mark.contract

DEFINITIONS = """
CREATE TABLE customers (
  id STRING PRIMARY KEY, name STRING, tier STRING NOT NULL, spent DECIMAL(10, 2), tags ARRAY<STRING>
) INTO 2 PARTITIONS;
CREATE TABLE prices (model STRING PRIMARY KEY, version BIGINT) SEQUENCE BY version;
CREATE STREAM clicks (id STRING);
"""
Headrace = Callable[..., Any]


@pytest.fixture
def gateway(make_gateway: Callable[..., Any]) -> Any:
    return make_gateway(definitions=DEFINITIONS)


def rows_of(gateway: Any, table: str = "customers") -> list[dict[str, Any]]:
    found = gateway.stored(table)
    for row in found:
        del row["_partition"], row["_received_at"]
    return sorted(found, key=lambda row: str(row.get("id")))


def csv_of(count: int, first: int = 0) -> str:
    lines = [f'c{n},"name, {n}",gold,{n}.50' for n in range(first, first + count)]
    return "\n".join(["ID,name,tier,spent", *lines]) + "\n"


def row(number: int) -> dict[str, Any]:
    return {
        "id": f"c{number}",
        "name": f"name, {number}",
        "tier": "gold",
        "spent": Decimal(f"{number}.50"),
        "tags": None,
        "_op": None,
    }


def as_parquet(path: Path, **changes: Any) -> None:
    columns = {
        "id": pa.array(["c0", "c1"]).dictionary_encode(),
        "name": pa.array(["name, 0", "name, 1"], pa.large_string()),
        "Tier": pa.array(["gold", "gold"]),
        "spent": pa.array(["0.50", "1.50"]),
        "ignored": pa.array([1, 2]),
    }
    pq.write_table(pa.table({**columns, **changes}), path)


def write(path: Path) -> None:
    lines = [json.dumps({**row(n), "spent": f"{n}.50"}) for n in range(2)]
    match "".join(path.suffixes):
        case ".csv":
            path.write_text(csv_of(2))
        case ".csv.gz":
            path.write_bytes(gzip.compress(csv_of(2).encode()))
        case ".tsv":
            path.write_text(
                "id\tname\ttier\tspent\nc0\tname, 0\tgold\t0.50\nc1\tname, 1\tgold\t1.50"
            )
        case ".parquet":
            as_parquet(path)
        case _:
            path.write_text("\n\n".join(lines))


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet", "ndjson"])
def test_every_format_gives_the_same_rows(
    gateway: Any, headrace: Headrace, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"rows.{ending}"
    write(file)
    ended = headrace("load", "Customers", file, "--url", gateway.url)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("customers: 2 rows durable in ")
    assert rows_of(gateway) == [row(0), row(1)]


def test_deletes_and_standard_input(
    gateway: Any, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'id,tier,_op,tags\na,x,,"[""t""]"\nb,,delete,\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ended = headrace("load", "customers", "-", "--format", "csv", "--url", gateway.url, "--json")
    document = ended.document
    assert document.pop("seconds") > 0 < document.pop("rows_per_second")
    assert document == {"table": "customers", "rows": 2, "dead": 0, "skipped": 0, "deleted": 0}
    found = [(r["id"], r["tier"], r["_op"], r["tags"]) for r in rows_of(gateway)]
    assert found == [("a", "x", None, ["t"]), ("b", None, "delete", None)]


def test_rows_that_do_not_fit_are_dead_letters(
    gateway: Any, headrace: Headrace, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,tier,spent\na,x,1.50\nb,,2\nc,x,1.505\nd,x,\n")
    ended = headrace("load", "customers", file, "--url", gateway.url)
    assert ended.code == 1
    assert "customers: 4 rows durable" in ended.out
    assert "2 rows are dead letters, the first of them: column tier STRING NOT NULL" in ended.out
    assert "headrace deadletters list --stream customers" in ended.out
    assert [r["id"] for r in rows_of(gateway)] == ["a", "d"]
    letters = gateway.client.get("/v1/deadletters").json()["deadletters"]
    assert [json.loads(letter["raw"])["id"] for letter in letters] == ["b", "c"]


def interrupted(gateway: Any, file: Path, after: int) -> None:
    """A load that ends, as by Ctrl-C, once so many rows are durable."""

    def stop(_: int, rows: int) -> None:
        if rows >= after:
            raise KeyboardInterrupt

    target = target_of("customers", gateway.client.get("/v1/streams").json()["streams"])
    sources = [Source(file, "csv", None)]
    with Sender(gateway.url, None, "customers") as sender:
        begun = begin(sender, target, sources)
        with pytest.raises(KeyboardInterrupt):
            load(sender, target, sources, begun, Loaded(), stop, replaces=False)


def test_an_interrupted_load_goes_on_and_a_finished_one_begins_anew(
    gateway: Any, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 10)
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(95))
    interrupted(gateway, file, 40)
    assert len(rows_of(gateway)) == 40
    command = ("load", "customers", file, "--url", gateway.url)
    went_on = headrace(*command, "--json").document
    assert (went_on["rows"], went_on["skipped"]) == (55, 40)
    assert [r["id"] for r in rows_of(gateway)] == sorted(f"c{n}" for n in range(95))
    anew = headrace(*command, "--json").document
    assert (anew["rows"], anew["skipped"]) == (95, 0)
    assert len(rows_of(gateway)) == 190

    interrupted(gateway, file, 40)
    file.write_text(csv_of(5, 1_000))  # another file: nothing is skipped
    other = headrace(*command, "--json").document
    assert (other["rows"], other["skipped"]) == (5, 0)
    page = gateway.client.get("/v1/streams/customers/completeness").json()
    assert sorted(producer["retired"] for producer in page["producers"]) == [False, True]
    assert page["summary"]["missing_events"] == 0


def test_a_gateway_that_takes_less_at_once_gets_less(
    make_gateway: Callable[..., Any], headrace: Headrace, tmp_path: Path
) -> None:
    gateway = make_gateway("request_records_max = 7\n", DEFINITIONS)
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(50))
    ended = headrace("load", "customers", file, "--url", gateway.url)
    assert ended.code == 0, ended.err
    assert len(rows_of(gateway)) == 50


def test_initial_is_taken_only_before_all_events(
    gateway: Any, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 10)
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(30))
    command = ("load", "customers", file, "--initial", "--url", gateway.url)
    interrupted(gateway, file, 20)
    went_on = headrace(*command, "--json").document  # what is there comes from this load
    assert (went_on["rows"], went_on["skipped"]) == (10, 20)
    again = headrace(*command)
    assert (again.code, "customers has had changes already" in again.err) == (2, True)
    gateway.send({"id": "x"}, "clicks")
    prices = tmp_path / "prices.ndjson"
    prices.write_text('{"model":"m","version":1}\n')
    late = headrace("load", "prices", prices, "--initial", "--url", gateway.url)
    assert (late.code, "the stream clicks has events already" in late.err) == (2, True)
    assert rows_of(gateway, "prices") == []


def test_events_that_come_during_an_initial_load_are_told(
    gateway: Any, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_beside_an_event(*arguments: Any, **options: Any) -> None:
        gateway.send({"id": "x"}, "clicks")
        load(*arguments, **options)

    monkeypatch.setattr("headrace.loading.load.load", load_beside_an_event)
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(3))
    ended = headrace("load", "customers", file, "--initial", "--url", gateway.url)
    assert (ended.code, "3 rows durable" in ended.out) == (1, True)
    assert "events came to the stream clicks while the rows were loaded" in ended.err


def test_initial_does_not_go_on_over_the_changes_of_others(
    gateway: Any, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 10)
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(30))
    interrupted(gateway, file, 20)
    gateway.client.post("/v1/tables/customers", json={"id": "other", "tier": "x"})
    refused = headrace("load", "customers", file, "--initial", "--url", gateway.url)
    assert (refused.code, "customers has had changes already" in refused.err) == (2, True)


class Engine(BaseHTTPRequestHandler):
    """Pages of a table, for those who say the secret and what the answer is to cover."""

    protocol_version = "HTTP/1.1"
    pages: list[pa.RecordBatch]
    asked: list[dict[str, list[str]]]

    def log_message(self, *arguments: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        assert self.headers["headrace-internal"] == "s3cret"
        assert self.path.startswith("/v1/views/customers?")
        asked = parse_qs(urlsplit(self.path).query)
        self.asked.append(asked)
        number = int(asked.get("cursor", ["0"])[0])
        if number == 0 and len(self.asked) == 1:
            self._answer(504, b'{"code":"not-covered"}', None)
            return
        page = self.pages[number]
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, page.schema) as writer:
            writer.write_batch(page)
        following = str(number + 1) if number + 1 < len(self.pages) else None
        self._answer(200, sink.getvalue(), following)

    def _answer(self, status: int, body: bytes, cursor: str | None) -> None:
        self.send_response(status)
        if cursor is not None:
            self.send_header("headrace-next-cursor", cursor)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def engine_with(gateway: Any, pages: list[list[str]]) -> Iterator[list[dict[str, list[str]]]]:
    batches = [pa.RecordBatch.from_pydict({"id": ids, "tier": ["old"] * len(ids)}) for ids in pages]
    kind = type("Engine", (Engine,), {"pages": batches, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    said = {"pid": 1, "port": server.server_address[1], "secret": "s3cret"}
    (gateway.settings.run_directory / "engine.json").write_text(json.dumps(said))
    try:
        yield kind.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_replace_deletes_what_the_files_lack(
    gateway: Any, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that could not be taken keeps the table's."""
    monkeypatch.setattr(lacking, "PAGE_ROWS", 2)
    csv, ndjson = tmp_path / "rows.csv", tmp_path / "rows.ndjson"
    csv.write_text("id,tier,spent\nc0,gold,1\nc1,gold,broken\n")
    ndjson.write_text('{"id":"c2","tier":"gold"}\n{"id":"c3"}\nbroken\n')
    stored = [["c0", "c1"], ["c2", "c3"], ["c4", "c5"]]
    with engine_with(gateway, stored) as asked:
        command = ("load", "customers", csv, ndjson, "--replace", "--url", gateway.url)
        ended = headrace(*command)
    assert ended.code == 1, ended.err  # three rows are dead letters
    assert "2 rows that the files lack were deleted" in ended.out
    assert [page.get("cursor") for page in asked] == [None, None, ["1"], ["2"]]
    assert all("covers" in page for page in asked[:2])
    deleted = [(r["id"], r["tier"]) for r in rows_of(gateway) if r["_op"] == "delete"]
    assert deleted == [("c4", None), ("c5", None)]
    page = gateway.client.get("/v1/streams/customers/completeness").json()
    assert all(producer["retired"] for producer in page["producers"])


def test_what_replace_cannot_do_is_refused(
    gateway: Any, headrace: Headrace, tmp_path: Path
) -> None:
    file = tmp_path / "prices.ndjson"
    file.write_text('{"model":"m","version":1}\n')
    sequenced = headrace("load", "prices", file, "--replace", "--url", gateway.url)
    assert (sequenced.code, "SEQUENCE BY" in sequenced.err) == (2, True)
    twice = headrace(
        "load", "customers", STDIN, "--format", "csv", "--replace", "--url", gateway.url
    )
    assert (twice.code, "reads the rows twice" in twice.err) == (2, True)
    assert rows_of(gateway, "prices") == []


@pytest.mark.parametrize(
    ("table", "name", "text", "words"),
    [
        ("custmers", "a.csv", "id,tier\n", "did you mean customers?"),
        ("clicks", "a.csv", "id\n", "there is no table 'clicks' that takes rows"),
        ("customers", "a.xlsx", "", "say --format csv|tsv|parquet|ndjson"),
        ("customers", "a.csv", "id,name\na,b\n", "lacks the column tier of the table customers"),
        ("customers", "a.csv", "id,tier,ID\na,b,c\n", "has the column id twice"),
        ("customers", "a.csv", "id,tier\na,b,c\n", "cannot be read as csv"),
        ("customers", "a.parquet", "no", "cannot be read as parquet"),
        ("customers", "missing.csv", None, "cannot read"),
    ],
)
def test_mistakes_are_named(
    gateway: Any,
    headrace: Headrace,
    tmp_path: Path,
    table: str,
    name: str,
    text: str | None,
    words: str,
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    ended = headrace("load", table, tmp_path / name, "--url", gateway.url)
    assert ended.code == 2, ended.err
    assert words in ended.err


def test_an_empty_file_changes_nothing(gateway: Any, headrace: Headrace, tmp_path: Path) -> None:
    for name, text in (("a.csv", ""), ("b.csv", "id,tier\n"), ("c.ndjson", "\n\n")):
        (tmp_path / name).write_text(text)
        ended = headrace("load", "customers", tmp_path / name, "--url", gateway.url)
        assert (ended.code, "0 rows durable" in ended.out) == (0, True), ended.err
