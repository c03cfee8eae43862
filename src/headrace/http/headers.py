"""The header fields of a request."""

from __future__ import annotations

__all__ = ["Headers"]


class Headers(dict[str, str]):
    """Header fields by lower-case name; equal names are joined by commas. A value that is not
    ASCII can only be asked for with `in`: `get` gives the default."""

    def __init__(self) -> None:
        super().__init__()
        self._unreadable: set[str] = set()

    def add(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        try:
            text = value.decode("ascii")
        except UnicodeDecodeError:
            self._unreadable.add(key)
            self.pop(key, None)
            return
        if dict.__contains__(self, key):
            text = f"{self[key]}, {text}"
        if not self._unreadable or key not in self._unreadable:
            self[key] = text

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key in self._unreadable
