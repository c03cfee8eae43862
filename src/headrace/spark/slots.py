"""Columns that several queries share: of equal type and turn, whatever they are called."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Slots"]


@dataclass
class Slots:
    """One name per (kind, type, turn), in the order in which they were first taken. Each sharer
    brings its own `used` and takes every slot at most once."""

    prefix: str
    names: dict[tuple[str, str, int], str] = field(default_factory=dict)

    def take(self, kind: str, of_type: str, used: dict[tuple[str, str], int]) -> str:
        turn = used.get((kind, of_type), 0)
        used[(kind, of_type)] = turn + 1
        return self.names.setdefault((kind, of_type, turn), f"{self.prefix}{len(self.names)}")
