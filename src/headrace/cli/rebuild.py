"""`headrace rebuild VIEW`: throw a view's state away and fill it again from the log."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json

__all__ = ["command"]


def command(
    view: Annotated[str, typer.Argument(help="The view to fill again.")],
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Fill a view again from the log. For after its definition changed, or after it failed."""
    answer = resolve(project, url, token).post(f"/v1/views/{quote(view, safe='')}/rebuild")
    if as_json:
        print_json(answer)
        return
    print(f"{view} is being filled from the log; headrace status shows how far it is")
