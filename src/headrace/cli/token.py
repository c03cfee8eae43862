"""`headrace token`: bearer tokens of a project."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import AsJson, ProjectFolder
from headrace.cli.output import print_json, print_table, say
from headrace.cli.project import read_settings

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
    from headrace.gateway.tokens import create_token

    secret = create_token(read_settings(project).tokens_file, name, scope)
    if as_json:
        print_json({"name": name, "scopes": scope, "token": secret})
        return
    print(secret)
    say(f"{name} may {', '.join(scope)}; keep the token, it is not shown again")


@app.command("list")
def list_tokens(project: ProjectFolder = None, as_json: AsJson = False) -> None:
    """Show the tokens' names and scopes."""
    from headrace.gateway.tokens import read_tokens

    tokens = [
        {"name": token.name, "scopes": list(token.scopes), "created_at": token.created_at}
        for token in read_tokens(read_settings(project).tokens_file)
    ]
    if as_json:
        print_json({"tokens": tokens})
        return
    if not tokens:
        print("no tokens: everyone on this machine may do everything")
        return
    print_table(
        ("name", "scopes", "created at"),
        [(token["name"], ", ".join(token["scopes"]), token["created_at"]) for token in tokens],
    )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The token's name.")],
    project: ProjectFolder = None,
    as_json: AsJson = False,
) -> None:
    """Take a token back. A running gateway refuses it from then on."""
    from headrace.gateway.tokens import revoke_token

    revoke_token(read_settings(project).tokens_file, name)
    if as_json:
        print_json({"name": name, "revoked": True})
        return
    print(f"revoked {name}")
