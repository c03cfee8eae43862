"""What a request asks for in its query string."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import parse_qs

from headrace.model.errors import RequestError

__all__ = ["number_parameter", "operation_parameter", "read_parameters", "stream_parameter"]

_QUERY_STRING_CHARACTERS_MAX = 8_192


@lru_cache(maxsize=1_024)
def stream_parameter(query_string: str) -> str:
    return read_parameters(query_string).get("name", [""])[0]


@lru_cache(maxsize=1_024)
def operation_parameter(query_string: str) -> str:
    """What the records of a table are that do not say it themselves: `upsert` or `delete`."""
    parameters = read_parameters(query_string)
    operations = parameters.pop("op", ["upsert"])
    if parameters:  # perhaps another spelling of op, and so a delete that would be an upsert
        raise RequestError(
            422,
            "bad-parameter",
            f"changes of a table have no parameter {next(iter(parameters))!r}",
            hint="op=delete makes every record a delete that does not say its _op",
        )
    if operations not in (["upsert"], ["delete"]):
        raise RequestError(
            422, "bad-parameter", "op must be upsert or delete", hint="leave it out for upserts"
        )
    return operations[0]


def read_parameters(query_string: str) -> dict[str, list[str]]:
    if len(query_string) > _QUERY_STRING_CHARACTERS_MAX:
        raise RequestError(
            422, "bad-parameter", "the query string is too long", hint="send fewer parameters"
        )
    return parse_qs(query_string, keep_blank_values=True)


def number_parameter(
    parameters: dict[str, list[str]], name: str, default: int, smallest: int, largest: int
) -> int:
    if name not in parameters:
        return default
    text = parameters[name][0]
    try:
        number = int(text) if len(text) <= 20 else largest + 1
    except ValueError:
        number = smallest - 1
    if not smallest <= number <= largest:
        raise RequestError(
            422,
            "bad-parameter",
            f"{name} must be a whole number from {smallest} to {largest}",
            hint=f"{name}={default}",
        )
    return number
