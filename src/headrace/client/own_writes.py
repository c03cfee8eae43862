"""What a query is to cover, so that it shows what the client itself has written before."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.model.covers import CHARACTERS_MAX, COVERS_NOW, Covers
from headrace.model.errors import CoversError

__all__ = ["merged_token"]


def merged_token(tokens: Iterable[str]) -> str:
    """One token that covers what each of these does, in the order in which they were given; "" for
    none. Of two logs the later one counts: the project's data was removed in between, and with it
    what the earlier one covered. Where no token can say it, because it would be too long or a newer
    server has tokens of another kind, it is `now`, which covers more."""
    merged: Covers | None = None
    try:
        for text in tokens:
            token = Covers.read(text)
            is_same = merged is not None and merged.log == token.log
            merged = merged.merged(token) if merged is not None and is_same else token
    except CoversError:
        return COVERS_NOW
    text = "" if merged is None else merged.text()
    return text if len(text) <= CHARACTERS_MAX else COVERS_NOW
