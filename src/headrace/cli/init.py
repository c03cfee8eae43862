"""`headrace init NAME`: a project to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import print_json
from headrace.model.errors import SettingsError

__all__ = ["command"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


def command(
    name: Annotated[str, typer.Argument(help="The folder to make; its last part is the name.")],
    as_json: AsJson = False,
) -> None:
    """Make a project to start from: the shop, with two views, their tests and sample events."""
    folder = Path(name)
    if not _NAME.fullmatch(folder.name):
        raise SettingsError(
            f"{folder.name!r} cannot be a project's name",
            hint="a letter, then letters, digits, - and _, at most 63 in all",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            f"{folder} exists and is not empty", hint="choose another name, or empty it first"
        )
    from headrace.demo.shop import write_project

    files = write_project(folder, folder.name)
    if as_json:
        print_json({"project": str(folder), "files": [str(file) for file in files]})
        return
    for file in files:
        print(f"  wrote {file}")
    print(f"\nnext: cd {folder} && headrace up")
