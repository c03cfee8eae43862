"""`python project_with_tables.py DIRECTORY`: the gateway of that folder's project, with tables.

CREATE TABLE customers (id STRING, name STRING, tier STRING NOT NULL, spent DECIMAL(10, 2),
                        tags ARRAY<STRING>, PRIMARY KEY (id));
CREATE TABLE notes_by_text FROM notes KEY (text);
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

from headrace.compile import load_project
from headrace.gateway.process import run_gateway
from headrace.model.definitions import (
    OPERATION,
    Changelog,
    Column,
    Output,
    Project,
    Retention,
    RetentionAction,
    Stream,
    Table,
    View,
)
from headrace.model.settings import load_settings
from headrace.model.types import parse_type

CUSTOMERS = Stream(
    "customers",
    (
        Column("id", parse_type("STRING"), nullable=False),
        Column("name", parse_type("STRING")),
        Column("tier", parse_type("STRING")),
        Column("spent", parse_type("DECIMAL(10, 2)")),
        Column("tags", parse_type("ARRAY<STRING>")),
        Column(OPERATION, parse_type("STRING")),
    ),
    partition_by=("id",),
    partitions=2,
    retention=Retention(action=RetentionAction.COMPACT),
    changelog=Changelog(("id",), ("tier",)),
)


def load_project_with_tables(directory: Path) -> Project:
    project = load_project(directory)
    outputs = tuple(Output(c.name, c.name) for c in CUSTOMERS.columns[:-1])
    customers = Table(("id",), delete_when=f"{OPERATION} = 'delete'")
    views = [View("customers", "customers", outputs, table=customers), *project.views]
    if project.stream("notes") is not None:
        views.append(
            View("notes_by_text", "notes", (Output("text", "text"),), table=Table(("text",)))
        )
    return replace(project, streams=(CUSTOMERS, *project.streams), views=tuple(views))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    folder = Path(sys.argv[1])
    sys.exit(run_gateway(load_settings(folder), load_project_with_tables(folder)))
