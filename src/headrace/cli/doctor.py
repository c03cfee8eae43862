"""`headrace doctor`: is this machine fit to run the project?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from headrace.cli import exits
from headrace.cli.checks import MISSING, run_checks
from headrace.cli.options import AsJson, ProjectFolder
from headrace.cli.output import print_json, print_table
from headrace.cli.project import find_directory
from headrace.model.errors import SettingsError
from headrace.model.settings import Settings, load_settings

__all__ = ["command"]


def command(project: ProjectFolder = None, as_json: AsJson = False) -> None:
    """Check this machine. Exit code 1 if something is missing."""
    checks = run_checks(_settings(project))
    sound = all(check.state != MISSING for check in checks)
    if as_json:
        print_json({"ok": sound, "checks": [asdict(check) for check in checks]})
    else:
        print_table(
            ("check", "state", "what was found", "what to do"),
            [(check.name, check.state, check.detail, check.hint) for check in checks],
        )
    if not sound:
        raise typer.Exit(exits.CHECK_FAILED)


def _settings(project: Path | None) -> Settings:
    """Outside a project the defaults are checked, in the current folder."""
    if project is not None:
        return load_settings(find_directory(project))
    try:
        return load_settings(find_directory(None))
    except SettingsError:
        return load_settings(Path.cwd())
