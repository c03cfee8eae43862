"""`headrace token`: bearer tokens of a project."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import AsJson, ProjectFolder
from headrace.cli.output import print_json, print_table, say
from headrace.cli.project import read_settings
from headrace.model.errors import SettingsError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Create, list or revoke bearer tokens.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call it, for `list` and `revoke`.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", help="ingest:STREAM, ingest:*, query, sql or admin; give it more than once."
        ),
    ],
    project: ProjectFolder = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: the only time it can be seen, only its hash is kept."""
    from headrace.http.tokens import create_token

    secret = create_token(read_settings(project), name, scope)
    if as_json:
        print_json({"name": name, "scopes": scope, "token": secret})
        return
    print(secret)
    say(f"{name} may {', '.join(scope)}; keep the token, it is not shown again")


@app.command("list")
def list_tokens(project: ProjectFolder = None, as_json: AsJson = False) -> None:
    """Show the tokens' names and scopes."""
    from headrace.http.tokens import list_tokens as stored

    settings = read_settings(project)
    tokens = stored(settings)
    if as_json:
        shown = [{"name": token.name, "scopes": list(token.scopes)} for token in tokens]
        print_json({"tokens": shown})
    elif tokens:
        print_table(("name", "scopes"), [(t.name, ", ".join(t.scopes)) for t in tokens])
    elif settings.tokens_file.exists():
        print("no tokens left: nobody is let in")
    else:
        print("no tokens: everyone on this machine may do everything")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The token's name.")],
    project: ProjectFolder = None,
    as_json: AsJson = False,
) -> None:
    """Take a token back. A running gateway refuses it within a second."""
    from headrace.http.tokens import revoke_token

    if not revoke_token(read_settings(project), name):
        raise SettingsError(f"there is no token named {name}", hint="headrace token list")
    if as_json:
        print_json({"name": name, "revoked": True})
        return
    print(f"revoked {name}")
