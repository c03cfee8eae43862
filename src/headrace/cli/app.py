"""The table of verbs, and what becomes of an error that ends one."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from headrace.cli import (
    bench,
    deadletters,
    demo,
    doctor,
    exits,
    generate,
    init,
    query,
    rebuild,
    status,
    tail,
    token,
    up,
    validate,
)
from headrace.model.errors import HeadraceError

__all__ = ["app", "run"]

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help costs more than all the rest of starting
    help="Live, exact answers from streams of events.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _headrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


app.command("init")(init.command)
app.command("up")(up.command)
app.command("demo")(demo.command)
app.command("generate")(generate.command)
app.command("validate")(validate.command)
app.command("rebuild")(rebuild.command)
app.command("query")(query.command)
app.command("tail")(tail.command)
app.command("status")(status.command)
app.add_typer(deadletters.app, name="deadletters")
app.add_typer(token.app, name="token")
app.command("doctor")(doctor.command)
app.command("bench")(bench.command)


def run() -> None:
    """Errors of the one tree become their message and hint; anything else is a defect, and is
    shown whole."""
    try:
        app()
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(exits.exit_code(error))
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone: what it wanted it has.
        sys.stderr.close()
        sys.exit(exits.DONE)
    except Exception:
        traceback.print_exc()
        print("error: this is a defect in Headrace; please report it", file=sys.stderr)
        sys.exit(exits.DEFECT)
