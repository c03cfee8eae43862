"""That no two rows have one key, shown from what a tick has fetched, without reading the table."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.kinds.calculator import Calculator, quoted
from headrace.model.tables import ROW

__all__ = ["KeyProof"]


class KeyProof:
    """Of one table, whose key has the columns `key`. Its statement reads no stored table, so that
    its plan is made once."""

    def __init__(self, calculator: Calculator, key: pa.Schema) -> None:
        self._key = key
        row = pa.field(ROW, pa.int64())
        schemas = {"put": key, "asked": key, "found": key.append(row), "gone": pa.schema([row])}
        self._statement = calculator.prepare(schemas, self._sql)

    def _sql(self, slot: Mapping[str, str]) -> str:
        names = ", ".join(map(quoted, self._key.names))
        same = " AND ".join(
            f"a.{quoted(name)} IS NOT DISTINCT FROM b.{quoted(name)}" for name in self._key.names
        )
        put = slot["put"]
        return (
            f"SELECT (SELECT count(*) FROM {put})"
            f" - (SELECT count(*) FROM (SELECT DISTINCT {names} FROM {put})) AS repeated,"
            f" (SELECT count(*) FROM {put} a ANTI JOIN {slot['asked']} b ON {same}) AS unknown,"
            f" (SELECT count(*) FROM (SELECT * FROM {slot['found']} c ANTI JOIN {slot['gone']} d"
            f" ON c.{ROW} = d.{ROW}) a SEMI JOIN {put} b ON {same}) AS staying"
        )

    def is_free(self, put: pa.Table, asked: pa.Table, found: pa.Table, gone: pa.Table) -> bool:
        """Whether the keys of `put` differ from each other, are all among `asked`, and those of the
        rows `found` for these that have them are among `gone`, which holds ROW."""
        answer = self._statement.run(put=put, asked=asked, found=found, gone=gone)
        return bool(answer.to_pylist() == [{"repeated": 0, "unknown": 0, "staying": 0}])

    def close(self) -> None:
        self._statement.close()
