"""Rows that the store holds against rows that the log gives: by key, column by column, in Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compared", "Difference", "compare"]

RELATIVE = "1e-9D"  # how far apart two DOUBLE values of a column may be, by the larger of them
MISSING, EXTRA, OTHER = "missing", "extra", "different"
SIDES = ("stored", "proven")


@dataclass(frozen=True)
class Difference:
    """`kind` is missing (the log gives the row, the store has none), extra (the other way round)
    or different; `stored` and `proven` are public values by column."""

    kind: str
    stored: Mapping[str, Any] | None
    proven: Mapping[str, Any] | None


@dataclass(frozen=True)
class Compared:
    """`rows` is how many keys there are on either side. `differences` are the first of them."""

    rows: int
    missing: int
    extra: int
    different: int
    differences: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.different)


def compare(stored: DataFrame, proven: DataFrame, names: Sequence[str], limit: int) -> Compared:
    """`stored` and `proven` have the columns named in `names` as c0, c1, … and the keys as k0,
    k1, …; a key is in each of them at most once."""
    joined = _joined(stored, proven, len(names))
    counts = joined.selectExpr(
        "count(*)", *(f"count_if(kind = '{kind}')" for kind in (MISSING, EXTRA, OTHER))
    ).collect()[0]
    rows, missing, extra, different = counts
    found = Compared(rows, missing, extra, different)
    if found.is_equal or limit == 0:
        return found
    # Column by column: Arrow does not take structs whose fields are never NULL but they are.
    sides = [f"{side}.c{i} AS {side}{i}" for side in SIDES for i in range(len(names))]
    kept = joined.where("kind IS NOT NULL").limit(limit).selectExpr("kind", *sides)
    differences = (_difference(row, names) for row in kept.toArrow().to_pylist())
    return replace(found, differences=tuple(differences))


def _joined(stored: DataFrame, proven: DataFrame, columns: int) -> DataFrame:
    keys = [name for name in proven.columns if name.startswith("k")]
    ours = [f"c{i}" for i in range(columns)]
    left = proven.selectExpr("struct(*) AS proven", *keys)
    right = stored.selectExpr("struct(*) AS stored", *(f"{key} AS s_{key}" for key in keys))
    on = " AND ".join(f"{key} <=> s_{key}" for key in keys) or "true"
    from pyspark.sql.functions import expr

    both = left.join(right, expr(on), "full_outer")
    types = {field.name: field.dataType.simpleString() for field in proven.schema}
    same = " AND ".join(_same(name, types[name]) for name in ours) or "true"
    kind = (
        f"CASE WHEN stored IS NULL THEN '{MISSING}' WHEN proven IS NULL THEN '{EXTRA}' "
        f"WHEN NOT ({same}) THEN '{OTHER}' END AS kind"
    )
    return both.selectExpr(kind, "stored", "proven")


def _same(name: str, type_name: str) -> str:
    a, b = f"stored.{name}", f"proven.{name}"
    if type_name not in ("double", "float"):
        return f"({a} <=> {b})"
    near = f"abs({a} - {b}) <= {RELATIVE} * greatest(abs({a}), abs({b}))"
    return f"({a} <=> {b} OR coalesce({near}, false))"


def _difference(row: Mapping[str, Any], names: Sequence[str]) -> Difference:
    def side(which: str, none: str) -> dict[str, Any] | None:
        if row["kind"] == none:
            return None
        return {name: row[f"{which}{i}"] for i, name in enumerate(names)}

    return Difference(row["kind"], side("stored", MISSING), side("proven", EXTRA))
