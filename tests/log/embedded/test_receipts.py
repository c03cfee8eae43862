"""Receipts as they are stored, also by the version before."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from headrace.log.contract import NO_EVENT_TIME, Group, ProducerRange, Receipt
from headrace.log.embedded.receipts import decode_receipt, encode_receipt


def test_a_receipt_without_what_was_reached_is_read() -> None:
    stored = msgspec.msgpack.encode(
        (b"k", b"d", b"a", 7, [("s", "p", 1, 2, 3, NO_EVENT_TIME, -1, "")])
    )
    wanted = Receipt(b"k", b"d", b"a", 7, (ProducerRange("s", "p", 1, 2, 3),))
    assert decode_receipt(stored) == wanted
    assert decode_receipt(encode_receipt(wanted, (4, 5))).reached == (4, 5)


def test_a_log_without_an_identity_gets_one_for_good(embedded: Any, shop: Any) -> None:
    stream = shop.stream()
    writer = embedded.writer([stream])
    first = writer.identity()
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    writer.close()
    file = embedded.directory / "layout.json"
    document = json.loads(file.read_text())
    del document["identity"]
    file.write_text(json.dumps(document))
    writer = embedded.writer([stream])
    second = writer.identity()
    assert second
    assert second != first
    assert embedded.reader([stream]).identity() == second
    assert shop.ids(embedded.reader([stream]), "transactions", 0) == [0, 1, 2]
    writer.close()
    assert embedded.writer([stream]).identity() == second
