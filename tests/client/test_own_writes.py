"""The token by which a client reads its own writes: merged over streams, and bounded."""

from __future__ import annotations

import pytest

from headrace.client.outbox import Batch, Limits, Outbox, Stored
from headrace.client.own_writes import merged_token
from headrace.model.covers import CHARACTERS_MAX, COVERS_NOW, Covers


def token(log: str = "log", **ends: tuple[int, ...]) -> str:
    return Covers(log, ends).text()


def test_one_token_covers_all_streams() -> None:
    merged = merged_token([token(a=(3, 1)), token(b=(2,)), token(a=(1, 4))])
    assert Covers.read(merged) == Covers("log", {"a": (3, 4), "b": (2,)})
    assert merged_token([]) == ""


def test_what_the_log_before_held_is_gone() -> None:
    merged = merged_token([token(a=(9,)), token("new", a=(1,)), token("new", b=(2,))])
    assert Covers.read(merged) == Covers("new", {"a": (1,), "b": (2,)})


@pytest.mark.parametrize("odd", ["2newer", "nothing", "é"])
def test_what_cannot_be_merged_is_covered_by_now(odd: str) -> None:
    assert merged_token([token(a=(1,)), odd]) == COVERS_NOW


def test_a_token_that_would_be_too_long_is_covered_by_now() -> None:
    tokens = [token(**{f"stream_{n}": tuple(range(n * 1_000, n * 1_000 + 8))}) for n in range(600)]
    merged = [merged_token(tokens[:count]) for count in (100, 600)]
    assert len(Covers.read(merged[0]).ends) == 100
    assert merged[1] == COVERS_NOW
    assert max(map(len, merged)) <= CHARACTERS_MAX


def test_only_what_was_flushed_is_covered() -> None:
    outbox = Outbox(Limits())

    def store(stream: str, covers: str) -> None:
        outbox.put(stream, b"{}", 0.0)
        outbox.seal_all()
        batch = outbox.take(0.0)
        assert isinstance(batch, Batch)
        outbox.settle(batch, Stored(1, (), 0, covers))

    store("a", token(a=(1,)))
    assert outbox.covers == ""
    outbox.note_flushed()
    assert outbox.covers == token(a=(1,))
    store("a", token(a=(5,)))
    store("b", token(b=(2,)))
    assert outbox.covers == token(a=(1,))
    outbox.note_flushed()
    assert Covers.read(outbox.covers).ends == {"a": (5,), "b": (2,)}
    outbox.forget_covers(token(a=(1,)))  # refused when it was not the newest any more
    assert Covers.read(outbox.covers).ends == {"a": (5,), "b": (2,)}
    outbox.forget_covers(outbox.covers)
    outbox.note_flushed()
    assert outbox.covers == ""
    store("b", token(b=(3,)))
    store("c", "")  # from a server that gives none
    outbox.note_flushed()
    assert outbox.covers == token(b=(3,))
