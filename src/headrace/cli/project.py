"""Finding the project a verb is about, and reading its settings and definitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.errors import SettingsError
from headrace.model.settings import Settings, load_settings

if TYPE_CHECKING:
    from headrace.model.definitions import Project

__all__ = ["find_directory", "read_definitions", "read_settings"]

SETTINGS_FILE = "headrace.toml"


def find_directory(project: Path | None) -> Path:
    """The folder given, else the nearest one from here upwards that has a headrace.toml.

    Raises SettingsError when there is none.
    """
    if project is not None:
        if not project.is_dir():
            raise SettingsError(f"{project} is not a folder", hint="headrace init NAME makes one")
        if not (project / SETTINGS_FILE).exists():
            raise SettingsError(
                f"{project} has no {SETTINGS_FILE}", hint="headrace init NAME makes a project"
            )
        return project.resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / SETTINGS_FILE).exists():
            return folder
    raise SettingsError(
        f"no {SETTINGS_FILE} in {here} or above it",
        hint="go to a project's folder, name it with --project, or make one: headrace init NAME",
    )


def read_settings(project: Path | None) -> Settings:
    return load_settings(find_directory(project))


def read_definitions(settings: Settings) -> Project:
    """Raises DefinitionErrors with every fault at once."""
    from headrace.compile import load_project

    return load_project(settings.directory)
