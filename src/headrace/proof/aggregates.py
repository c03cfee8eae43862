"""The partials of a plan as plain Spark SQL over all events at once."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.plan import Partial

__all__ = ["aggregate_sql", "one_event_sql"]


def aggregate_sql(partial: Partial, over: str = "") -> str:
    """`over` follows each aggregate function."""
    if partial.function == "m2":
        return f"var_pop({partial.input}){over} * count({partial.input}){over}"
    return f"{partial.function}({', '.join([partial.input, *partial.order])}){over}"


def one_event_sql(texts: Sequence[str], prefix: str) -> list[str]:
    """Values of an event that is a group of its own, named by their place."""
    return [f"any_value({text}) AS {prefix}{i}" for i, text in enumerate(texts)]
