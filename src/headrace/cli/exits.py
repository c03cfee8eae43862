"""Exit codes, the same for every verb; documented in docs/reference/cli.md."""

from __future__ import annotations

from headrace.model.errors import (
    ClientError,
    DefinitionError,
    DefinitionErrors,
    HeadraceError,
    JavaMissingError,
    Location,
    ProofError,
    RefusedError,
    RequestError,
    SettingsError,
    UnreachableError,
)

__all__ = ["CHECK_FAILED", "DEFECT", "DONE", "FAILED", "INTERRUPTED", "MISTAKE", "UNREACHABLE"]

DONE = 0
CHECK_FAILED = 1  # a fault, a difference or something missing was found, as the verb was to find
MISTAKE = 2  # wrong usage, definitions, settings or a request that was refused
UNREACHABLE = 3  # no answer, or the part that answers is down
FAILED = 4  # the log, the store or the engine could not do its work
DEFECT = 70  # an unexpected exception: please report it
INTERRUPTED = 130


def exit_code(error: HeadraceError) -> int:
    """The code a verb ends with when this error ends it."""
    match error:
        case UnreachableError():
            return UNREACHABLE
        case RefusedError(status=status) | RequestError(status=status):
            return UNREACHABLE if status >= 500 else MISTAKE
        case HeadraceError(location=Location()) | JavaMissingError():
            return MISTAKE  # what points at a definition is about that definition
        case DefinitionError() | DefinitionErrors() | SettingsError() | ClientError():
            return MISTAKE
        case ProofError():
            return MISTAKE
        case _:
            return FAILED
