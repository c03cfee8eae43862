"""Options that several verbs have, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "ProjectFolder", "ServerToken", "ServerUrl"]

ProjectFolder = Annotated[
    Path | None,
    typer.Option(
        "--project",
        metavar="DIR",
        help="The project's folder. Default: the nearest one upwards with a headrace.toml.",
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="HEADRACE_URL",
        metavar="URL",
        help="The gateway's address. Default: that of the project.",
    ),
]
ServerToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="HEADRACE_TOKEN",
        metavar="TOKEN",
        help="The bearer token, where the gateway asks for one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
