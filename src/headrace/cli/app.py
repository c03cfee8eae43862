"""The table of verbs, and what becomes of an error that ends one."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from headrace.cli import exits
from headrace.model.errors import HeadraceError

__all__ = ["VERBS", "app", "run"]

VERBS = (
    "init",
    "up",
    "demo",
    "generate",
    "load",
    "validate",
    "rebuild",
    "reconcile",
    "query",
    "tail",
    "status",
    "completeness",
    "ledger",
    "late",
    "resume",
    "why",
    "deadletters",
    "token",
    "doctor",
    "bench",
)


class _Verbs(TyperGroup):
    """A verb's module is imported when the verb is asked for; all of them to list or suggest."""

    def list_commands(self, ctx: Any) -> list[str]:
        for name in VERBS:
            self._load(name)
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name in (cmd_name,) if cmd_name in VERBS else VERBS:
            self._load(name)
        return self.commands.get(cmd_name)

    def _load(self, name: str) -> None:
        if name in self.commands:
            return
        module = import_module(f"headrace.cli.{name}")
        holder = typer.Typer(rich_markup_mode=None)
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=name)
        else:
            holder.command(name)(module.command)
        self.commands.update(get_group(holder).commands)


app = typer.Typer(
    name="headrace",
    cls=_Verbs,
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
