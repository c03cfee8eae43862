"""One table of the backend in DuckDB: the statements that read and change its rows.

Rows are looked up by a semi join with what is asked. DuckDB plans that as a scan of the columns
`on`, which reads only the stretches that hold the values asked for: none but the newest where a
time is among them. Where none is (keys alone) the scan grows with the table, and comparing them is
most of it. So a table that has grown large gets a hash of these columns, of which a million are
scanned in 4 ms, and one that has grown very large an index over the hashes, through which few keys
are looked up. Hashes only narrow what is compared.

That no two rows have one key is checked without reading the table where a tick has fetched the
rows with the keys that it puts, as most do.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import (
    Slot,
    arrow_table,
    conformed,
    quoted,
    store_type,
)
from headrace.model.errors import StoreError
from headrace.model.plan import BoundColumn
from headrace.model.tables import HIGH, LOW, ROW, Fetch, TableDefinition, TableDelta
from headrace.store.backend import SCHEMA
from headrace.store.duckdb.key_proof import are_keys_free

__all__ = ["HASH_PREFIX", "HASH_ROWS_MIN", "INDEX_ROWS_MIN", "StoredTable"]

HASH_ROWS_MIN = 50_000  # below, columns are compared as fast
INDEX_ROWS_MIN = 2_000_000  # below, a scan is cheap and an index would slow large ticks down
INDEXED_ROWS_MAX = 1_024  # keys looked up through the index; more are found faster by a scan
HASH_PREFIX = "_hash_"
HASH_SQL = "(hash({}) >> 1)::BIGINT"
ROW_SCHEMA = pa.schema([(ROW, pa.int64())])
LOWEST, HIGHEST = -(2**63), 2**63 - 1
BOUND_MAX = 9_000_000_000_000_000_000  # beyond it a time is no literal that DuckDB takes

Columns = tuple[str, ...]


class StoredTable:
    """Slots and statements are made when they are first needed. `hashes` are the columns with
    hashes that the table has, `indexed` those with an index. Errors are DuckDB's, but StoreError
    where rows do not fit the table."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        definition: TableDefinition,
        hashes: frozenset[str] = frozenset(),
        indexed: frozenset[str] = frozenset(),
    ) -> None:
        self._connection = connection
        self.definition = definition
        self.name = f"{SCHEMA}.{quoted(definition.name)}"
        self._sets = {
            frozenset(columns): f"{HASH_PREFIX}{i}"
            for i, columns in enumerate((definition.key, *definition.indexes))
        }
        self.hashes = hashes
        self.indexed = indexed
        self.wanted: set[str] = set()  # hashes by which rows have been looked up, or would be
        self._by_key: list[tuple[pa.Table, pa.Table]] = []  # asked and answered
        self._slots: dict[tuple[str, Columns], tuple[str, Slot]] = {}
        self._prepared: dict[str, str] = {}  # names of statements by their text

    def create(self) -> None:
        columns = ", ".join(
            f"{quoted(c.name)} {store_type(c.type)}{self._compression(c)}"
            for c in self.definition.columns
        )
        self._connection.execute(f"CREATE TABLE {self.name} ({columns})")

    def _compression(self, column: BoundColumn) -> str:
        """To compress texts is most of the work of writing them."""
        is_left = self.definition.is_brief and column.type.name == "STRING"
        return " USING COMPRESSION uncompressed" if is_left else ""

    def close(self) -> None:
        """The connection forgets its slots and statements."""
        for name in self._prepared.values():
            self._connection.execute(f"DEALLOCATE {name}")
        self._prepared = {}
        for name, _ in self._slots.values():
            self._connection.unregister(name)
        self._slots = {}

    def _slot(self, use: str, columns: Columns, schema: pa.Schema) -> tuple[str, Slot]:
        found = self._slots.get((use, columns))
        if found is None:
            name = f"_{use}_{len(self._slots)}_{self.definition.name}"
            found = self._slots[use, columns] = (name, Slot(schema))
            self._connection.register(name, found[1])
        return found

    def _schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self._field(name) for name in columns])

    def _field(self, name: str) -> pa.Field:
        index = self.definition.schema.get_field_index(name)
        if index < 0:
            raise StoreError(f"table {self.definition.name} has no column {name}")
        return self.definition.schema.field(index)

    # Reading

    def fetch(self, fetch: Fetch) -> pa.Table:
        names = self.definition.schema.names if fetch.columns is None else fetch.columns
        answer = pa.schema([*self._schema(names), *ROW_SCHEMA])
        bounds = [] if fetch.time is None else [(LOW, pa.int64()), (HIGH, pa.int64())]
        asked = pa.schema([*self._schema(fetch.on), *bounds])
        rows = conformed(fetch.rows, asked) if len(asked) else fetch.rows
        if fetch.rows.num_rows == 0:
            return answer.empty_table()
        if fetch.time is not None:
            for bound, default in ((LOW, LOWEST), (HIGH, HIGHEST)):
                filled = rows.column(bound).fill_null(default)
                rows = rows.set_column(rows.column_names.index(bound), bound, filled)
        if not fetch.on and (fetch.time is None or rows.num_rows == 1):
            where = [] if fetch.time is None else self._within(fetch.time, rows)
            condition = f" WHERE {' AND '.join(where)}" if where else ""
            sql = f"SELECT {self._chosen(names)} FROM {self.name} t{condition}"
            return conformed(arrow_table(self._connection, sql), answer)
        asked_name, slot = self._slot("asked", (*fetch.on, fetch.time or ""), asked)
        slot.fill(rows)
        try:
            sql = self._fetch_sql(fetch, names, asked_name, rows)
            found = conformed(arrow_table(self._connection, sql), answer)
        finally:
            slot.clear()
        if fetch.time is None and set(fetch.on) == set(self.definition.key) <= set(names):
            self._by_key.append((rows, found))
        return found

    def forget_fetches(self) -> None:
        """The rows may have become others since."""
        self._by_key = []

    def _fetch_sql(
        self, fetch: Fetch, names: Sequence[str], asked_name: str, rows: pa.Table
    ) -> str:
        pairs = [_equal("t", "a", column, rows) for column in fetch.on]
        condition = ""
        if fetch.time is not None:
            pairs.append(f"{self._microseconds(fetch.time)} BETWEEN a.{LOW} AND a.{HIGH}")
            condition = f" WHERE {' AND '.join(self._within(fetch.time, rows))}"
        join = f"SEMI JOIN {asked_name} a ON {' AND '.join(pairs)}"
        column = self._hash_of(fetch)
        if column is None:
            sql = f"SELECT {self._chosen(names)} FROM {self.name} t {join}{condition}"
            return self._executed(sql) if fetch.time is None else sql
        hashes = f"SELECT {self._hash_sql(column)} FROM {asked_name}"
        if column in self.indexed and rows.num_rows <= INDEXED_ROWS_MAX:
            found = self._connection.execute(hashes.replace("SELECT", "SELECT DISTINCT", 1))
            hashes = ", ".join(str(row[0]) for row in found.fetchall())
        further = [name for name in fetch.on if name not in names]
        near = f"SELECT {self._chosen([*names, *further])} FROM {self.name} t"
        chosen = ", ".join([*(f"t.{quoted(name)}" for name in names), f"t.{ROW}"])
        # As one join the columns would be compared first, which takes three times as long.
        return (
            f"WITH near_rows AS MATERIALIZED ({near} WHERE t.{column} IN ({hashes}))"
            f" SELECT {chosen} FROM near_rows t {join}"
        )

    def _chosen(self, names: Sequence[str]) -> str:
        return ", ".join([*(f"t.{quoted(name)}" for name in names), f"t.rowid AS {ROW}"])

    def _hash_of(self, fetch: Fetch) -> str | None:
        """The column by which the rows are best found, if there is one."""
        column = self._sets.get(frozenset(fetch.on))
        if column is None or fetch.time is not None or any(map(self._is_timestamp, fetch.on)):
            return None
        self.wanted.add(column)
        return column if column in self.hashes else None

    def _is_timestamp(self, column: str) -> bool:
        return bool(pa.types.is_timestamp(self._field(column).type))

    def _within(self, time: str, rows: pa.Table) -> list[str]:
        """What holds for every row of the answer, as literals: these tell what need not be read."""
        column, micros = f"t.{quoted(time)}", self._microseconds(time)
        found = [f"{column} IS NOT NULL"]
        for bound, sign, none, outermost in (
            (LOW, ">=", LOWEST, pc.min),
            (HIGH, "<=", HIGHEST, pc.max),
        ):
            value = outermost(rows.column(bound)).as_py()
            if value == none:
                continue
            if self._is_timestamp(time) and abs(value) <= BOUND_MAX:
                found.append(f"{column} {sign} make_timestamptz(({value})::BIGINT)")
            else:
                found.append(f"{micros} {sign} ({value})::BIGINT")
        return found

    def _microseconds(self, time: str) -> str:
        column = f"t.{quoted(time)}"
        return f"epoch_us({column})" if self._is_timestamp(time) else column

    def _hash_sql(self, column: str) -> str:
        on = next(columns for columns, name in self._sets.items() if name == column)
        # In the table's order: the same columns have the same hash, however they are asked for.
        ordered = [quoted(name) for name in self.definition.schema.names if name in on]
        return HASH_SQL.format(", ".join(ordered))

    # Changing, within the caller's transaction

    def expect(self, delta: TableDelta) -> None:
        """Before the transaction, which would take the slots back if it is rolled back."""
        if delta.gone is not None:
            names = tuple(delta.gone.column_names)
            self._slot("gone", names, ROW_SCHEMA if names == (ROW,) else self._schema(names))
        if delta.put is not None:
            self._slot("put", (), self.definition.schema)

    def apply(self, delta: TableDelta) -> None:
        """Raises StoreError where rows to be put have one key, or that of a row that stays."""
        gone = delta.gone if delta.gone is not None and delta.gone.num_rows else None
        if gone is not None:
            gone = self._delete(gone)
        if delta.put is not None and delta.put.num_rows:
            name, slot = self._slot("put", (), self.definition.schema)
            slot.fill(delta.put)
            try:
                if not (delta.are_keys_new or self._is_key_free(slot.table, gone, delta.known)):
                    self._check_key(name, slot.table)
                self._by_key = []
                self._insert(name)
            finally:
                slot.clear()

    def _delete(self, gone: pa.Table) -> pa.Table:
        names = tuple(gone.column_names)
        schema = ROW_SCHEMA if names == (ROW,) else self._schema(names)
        name, slot = self._slot("gone", names, schema)
        slot.fill(gone)
        try:
            if names == (ROW,):
                wanted = f"WHERE rowid IN (SELECT {ROW} FROM {name})"
            else:
                pairs = " AND ".join(_equal("t", "g", column, slot.table) for column in names)
                wanted = f"t USING (SELECT DISTINCT * FROM {name}) g WHERE {pairs}"
            self._connection.execute(self._executed(f"DELETE FROM {self.name} {wanted}"))
            return slot.table
        finally:
            slot.clear()

    def _insert(self, put_name: str) -> None:
        hashes = [f", {self._hash_sql(column)}" for column in sorted(self.hashes)]
        sql = f"INSERT INTO {self.name} SELECT *{''.join(hashes)} FROM {put_name}"
        self._connection.execute(self._executed(sql))

    def _executed(self, sql: str) -> str:
        """The text that runs a statement without reading it anew. It must be one of a few: each
        stays with the connection. DuckDB plans it again where it reads a stored table."""
        name = self._prepared.get(sql)
        if name is None:
            name = quoted(f"_{len(self._prepared)}_{self.definition.name}")
            self._connection.execute(f"PREPARE {name} AS {sql}")
            self._prepared[sql] = name
        return f"EXECUTE {name}"

    def _is_key_free(self, put: pa.Table, gone: pa.Table | None, known: pa.Table | None) -> bool:
        """Whether what this tick knows of the table shows that the keys are free: the rows that
        had them were fetched, or let go by their keys, and none of them stays. False says nothing.
        """
        key, asked = self.definition.key, None
        if gone is not None and set(gone.column_names) == set(key):
            asked, known = gone.select(key), put.slice(0, 0)
        elif known is None and self._by_key and key:
            asked = pa.concat_tables([asked.select(key) for asked, _ in self._by_key])
            known = pa.concat_tables([answer.select([*key, ROW]) for _, answer in self._by_key])
        if known is None:
            return False
        if gone is not None and gone.column_names == [ROW]:
            known = known.filter(pc.invert(pc.is_in(known.column(ROW), gone.column(ROW))))
        return are_keys_free(put.select(key), known.select(key), asked)

    def _check_key(self, name: str, put: pa.Table) -> None:
        key = self.definition.key
        pairs = " AND ".join(_equal("t", "p", column, put) for column in key) or "true"
        chosen = ", ".join(map(quoted, key)) or "1"
        group = f" GROUP BY {chosen}" if key else ""
        column = self._sets[frozenset(key)]
        rows, near = self.name, ""
        if column in self.hashes:
            near = (
                f"WITH near_rows AS MATERIALIZED (SELECT {chosen} FROM {self.name}"
                f" WHERE {column} IN (SELECT {self._hash_sql(column)} FROM {name})) "
            )
            rows = "near_rows"
        found = self._connection.execute(
            f"{near}(SELECT {chosen} FROM {rows} t SEMI JOIN {name} p ON {pairs} LIMIT 1)"
            f" UNION ALL (SELECT {chosen} FROM {name}{group} HAVING count(*) > 1 LIMIT 1)"
        ).fetchall()
        if found:
            raise StoreError(
                f"table {self.definition.name} would have two rows with the key {found[0]}"
            )

    # Hashes, and indexes over them

    def add_hashes(self, columns: frozenset[str]) -> None:
        """In a transaction: the table is written anew with hashes of these and no others. Once that
        is durable, this object's place is taken by a new one."""
        new = f"{SCHEMA}.{quoted(self.definition.name + ' with hashes')}"
        names = ", ".join(map(quoted, self.definition.schema.names))
        hashes = [f"{self._hash_sql(c)} AS {c}" for c in sorted(columns)]
        self._connection.execute(
            f"CREATE TABLE {new} AS SELECT {', '.join([names, *hashes])} FROM {self.name}"
        )
        self._connection.execute(f"DROP TABLE {self.name}")
        self._connection.execute(f"ALTER TABLE {new} RENAME TO {quoted(self.definition.name)}")

    def index(self, column: str) -> None:
        name = quoted(self.definition.name + column)
        self._connection.execute(f"CREATE INDEX {name} ON {self.name} ({column})")
        self.indexed |= {column}


def _equal(left: str, right: str, column: str, rows: pa.Table) -> str:
    """DuckDB narrows a scan by the values asked for only where the condition is a plain `=`, which
    is enough where none is NULL."""
    sign = "IS NOT DISTINCT FROM" if rows.column(column).null_count else "="
    return f"{left}.{quoted(column)} {sign} {right}.{quoted(column)}"
