"""Column types: the Spark SQL names users write, and the Arrow types that carry them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DataType", "TypeSyntaxError", "parse_type", "type_from_arrow"]

DECIMAL_PRECISION_MAX = 38
NESTING_MAX = 8

_SIMPLE = (
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "STRING",
    "BINARY",
    "DATE",
    "TIMESTAMP",
)
_ALIASES = {
    "BOOL": "BOOLEAN",
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TEXT": "STRING",
    "VARCHAR": "STRING",
}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`|\d+|[<>(),:])")


@cache
def _simple_arrow() -> dict[str, pa.DataType]:
    """Arrow is imported when first needed: definitions are checked without it."""
    import pyarrow as pa

    return {
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
    }


class TypeSyntaxError(ValueError):
    """The text is not a type a column can have; str(error) says which part and what is accepted."""


@dataclass(frozen=True)
class DataType:
    """One column type. `name` is the canonical Spark spelling, so equal types are equal objects."""

    name: str
    element: DataType | None = None
    fields: tuple[tuple[str, DataType], ...] = ()
    precision: int = 0
    scale: int = 0

    @cached_property
    def arrow(self) -> pa.DataType:
        """Timestamps are microseconds in UTC, strings are 32-bit offset UTF-8."""
        import pyarrow as pa

        if self.name.startswith("DECIMAL"):
            return pa.decimal128(self.precision, self.scale)
        if self.element is not None:
            return pa.list_(self.element.arrow)
        if self.fields:
            return pa.struct([(name, field.arrow) for name, field in self.fields])
        return _simple_arrow()[self.name]

    @property
    def is_decimal(self) -> bool:
        return self.precision > 0

    @property
    def is_integer(self) -> bool:
        return self.name in ("TINYINT", "SMALLINT", "INT", "BIGINT")

    @property
    def is_numeric(self) -> bool:
        return self.is_integer or self.is_decimal or self.name in ("FLOAT", "DOUBLE")

    @property
    def is_nested(self) -> bool:
        return self.element is not None or bool(self.fields)

    def __str__(self) -> str:
        return self.name


def parse_type(text: str) -> DataType:
    """Parse a Spark SQL type such as `DECIMAL(18, 2)` or `ARRAY<STRUCT<a: INT>>`.

    Raises TypeSyntaxError for anything else, including MAP, which has no place in a stream.
    """
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise TypeSyntaxError(f"unexpected {text[position:].strip()[:1]!r} in type {text!r}")
        tokens.append(match.group(1))
        position = match.end()
    parsed, rest = _parse(tokens, text, 1)
    if rest:
        raise TypeSyntaxError(f"unexpected {rest[0]!r} after type {parsed}")
    return parsed


def _parse(tokens: list[str], text: str, depth: int) -> tuple[DataType, list[str]]:
    if depth > NESTING_MAX:
        raise TypeSyntaxError(f"type {text!r} is nested deeper than {NESTING_MAX}")
    if not tokens:
        raise TypeSyntaxError(f"type {text!r} ends too early")
    head, rest = tokens[0].upper(), tokens[1:]
    head = _ALIASES.get(head, head)
    if head in _SIMPLE:
        return DataType(head), rest
    if head in ("DECIMAL", "DEC", "NUMERIC"):
        return _parse_decimal(rest, text)
    if head == "ARRAY":
        rest = _expect("<", rest, text)
        element, rest = _parse(rest, text, depth + 1)
        return DataType(f"ARRAY<{element}>", element=element), _expect(">", rest, text)
    if head == "STRUCT":
        return _parse_struct(rest, text, depth)
    accepted = ", ".join([*_SIMPLE, "DECIMAL(p, s)", "ARRAY<…>", "STRUCT<…>"])
    raise TypeSyntaxError(f"{tokens[0]!r} is not a column type; accepted are {accepted}")


def _parse_decimal(rest: list[str], text: str) -> tuple[DataType, list[str]]:
    precision, scale = 10, 0
    if rest[:1] == ["("]:
        if len(rest) < 3 or not rest[1].isdigit():
            raise TypeSyntaxError(f"DECIMAL needs a precision, as in DECIMAL(18, 2), in {text!r}")
        precision, rest = int(rest[1]), rest[2:]
        if rest[:1] == [","]:
            if len(rest) < 2 or not rest[1].isdigit():
                raise TypeSyntaxError(f"DECIMAL needs a scale after the comma in {text!r}")
            scale, rest = int(rest[1]), rest[2:]
        rest = _expect(")", rest, text)
    if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
        raise TypeSyntaxError(
            f"DECIMAL({precision}, {scale}): precision is 1 to {DECIMAL_PRECISION_MAX}, "
            "scale at most the precision"
        )
    name = f"DECIMAL({precision},{scale})"
    return DataType(name, precision=precision, scale=scale), rest


def _parse_struct(rest: list[str], text: str, depth: int) -> tuple[DataType, list[str]]:
    rest = _expect("<", rest, text)
    fields: list[tuple[str, DataType]] = []
    while True:
        if not rest:
            raise TypeSyntaxError(f"type {text!r} ends too early")
        name, rest = rest[0].strip("`"), rest[1:]
        if rest[:1] == [":"]:
            rest = rest[1:]
        field, rest = _parse(rest, text, depth + 1)
        fields.append((name, field))
        if rest[:1] != [","]:
            break
        rest = rest[1:]
    rest = _expect(">", rest, text)
    if len({name.lower() for name, _ in fields}) != len(fields):
        raise TypeSyntaxError(f"two fields of the same name in {text!r}")
    spelled = ", ".join(f"{name}: {field}" for name, field in fields)
    return DataType(f"STRUCT<{spelled}>", fields=tuple(fields)), rest


def _expect(token: str, rest: list[str], text: str) -> list[str]:
    if rest[:1] != [token]:
        raise TypeSyntaxError(f"{token!r} is missing in type {text!r}")
    return rest[1:]


def type_from_arrow(arrow: pa.DataType) -> DataType:
    """The column type of Spark's results of this Arrow type. Raises TypeSyntaxError if none."""
    import pyarrow as pa

    if pa.types.is_decimal(arrow):
        return parse_type(f"DECIMAL({arrow.precision},{arrow.scale})")
    if pa.types.is_timestamp(arrow):
        return DataType("TIMESTAMP")
    if pa.types.is_list(arrow):
        element = type_from_arrow(arrow.value_type)
        return DataType(f"ARRAY<{element}>", element=element)
    if pa.types.is_struct(arrow):
        fields = tuple((field.name, type_from_arrow(field.type)) for field in arrow)
        spelled = ", ".join(f"{name}: {field}" for name, field in fields)
        return DataType(f"STRUCT<{spelled}>", fields=fields)
    for name, simple in _simple_arrow().items():
        if simple == arrow:
            return DataType(name)
    if pa.types.is_large_string(arrow):
        return DataType("STRING")
    raise TypeSyntaxError(f"no column type corresponds to Arrow's {arrow}")
