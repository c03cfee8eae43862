"""The one error tree.

HeadraceError
├── DefinitionError        a definition (SQL or Python) is wrong; has a location
├── DefinitionErrors       every fault of a project at once
├── SettingsError          headrace.toml or an environment variable is wrong
├── RequestError           a client's request is refused; has an HTTP status
├── LogError               the log cannot do what was asked
│   ├── LogLockedError         another writer holds the log
│   ├── LogCorruptError        stored bytes fail their checksum before the tail
│   ├── LogFullError           the size limit is reached and the slowest view holds the rest
│   ├── LogOffsetError         an offset outside what the log holds
│   ├── KeyReusedError         an idempotency key came again with another body
│   └── ProducerGapsError      a producer left more gaps in its sequence numbers than are kept
├── StoreError             the view store cannot do what was asked
│   ├── StoreLockedError       another process holds the store
│   ├── MemoryShortError       the store needs more memory than its setting allows
│   ├── FencedError            a newer engine has taken over; this one must stop
│   ├── MergeError             merging one view's partials failed on data
│   ├── ConservationError      the events of a tick do not add up; nothing of it was stored
│   ├── LookUpError            a table no longer knows the rows of a position
│   ├── ChangesExpiredError    the change feed no longer reaches back that far
│   └── QueryError             a user's query is wrong, too long, too large or interrupted
├── EngineError            Spark or a tick failed
│   ├── JavaMissingError       no usable Java runtime
│   └── ViewChangedError       a definition changed under its state
├── CoversError            a token of what was written is damaged, or of another log
├── ProofError             a view cannot be proven from what the log still holds
├── KitError               a test asks of the test kit what no view could meet
└── ClientError            the Python client could not do what was asked
    ├── UnreachableError       no answer within the time the caller allowed
    ├── RefusedError           the server answered with a problem document
    └── BufferFullError        the send buffer is full and the caller chose not to wait

Every error says what happened (`message`), what to do next (`hint`), and has a stable `code`,
which is documented in docs/reference/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "BufferFullError",
    "ChangesExpiredError",
    "ClientError",
    "ConservationError",
    "CoversError",
    "DefinitionError",
    "DefinitionErrors",
    "EngineError",
    "FencedError",
    "HeadraceError",
    "JavaMissingError",
    "KeyReusedError",
    "KitError",
    "Location",
    "LogCorruptError",
    "LogError",
    "LogFullError",
    "LogLockedError",
    "LogOffsetError",
    "LookUpError",
    "MemoryShortError",
    "MergeError",
    "ProducerGapsError",
    "ProofError",
    "QueryError",
    "RefusedError",
    "RequestError",
    "SettingsError",
    "StoreError",
    "StoreLockedError",
    "UnreachableError",
    "ViewChangedError",
]


@dataclass(frozen=True, order=True)
class Location:
    """Where in the user's files something was said. Lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class HeadraceError(Exception):
    code = "error"

    def __init__(self, message: str, *, hint: str = "", location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.location = location

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{where}{self.message}{hint}"


class DefinitionError(HeadraceError):
    code = "definition"


class DefinitionErrors(HeadraceError):  # noqa: N818
    """All faults found in one pass, ordered by location."""

    code = "definitions"

    def __init__(self, errors: Sequence[DefinitionError]) -> None:
        self.errors = tuple(
            sorted(errors, key=lambda e: (e.location or Location("", 0, 0), e.message))
        )
        count = len(self.errors)
        super().__init__(f"{count} fault{'s' if count != 1 else ''} in the definitions")

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class SettingsError(HeadraceError):
    code = "settings"


class RequestError(HeadraceError):
    """A refused request. `code` is stable, `status` is the problem document's HTTP status,
    `allow` lists the methods a path has when it was asked with another, `more` are further members
    of the problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        retry_after_seconds: int | None = None,
        allow: str = "",
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        self.allow = allow
        self.more = dict(more or {})


class LogError(HeadraceError):
    code = "log"


class LogLockedError(LogError):
    code = "log-locked"


class LogCorruptError(LogError):
    code = "log-corrupt"


class LogFullError(LogError):
    code = "log-full"


class LogOffsetError(LogError):
    code = "log-offset"


class KeyReusedError(LogError):
    code = "key-reused"


class ProducerGapsError(LogError):
    code = "producer-gaps"


class StoreError(HeadraceError):
    code = "store"


class StoreLockedError(StoreError):
    code = "store-locked"


class MemoryShortError(StoreError):
    code = "store-memory"


class FencedError(StoreError):
    code = "fenced"


class MergeError(StoreError):
    """`view` is the view whose partials could not be merged; nothing of the tick was stored."""

    code = "merge"

    def __init__(self, view: str, message: str) -> None:
        super().__init__(f"view {view}: {message}")
        self.view = view


class ConservationError(StoreError):
    """`stream` is the stream whose events, or whose views' events, do not add up."""

    code = "conservation"

    def __init__(self, stream: str, message: str) -> None:
        super().__init__(
            message, hint="nothing of the tick was stored; see docs/explanation/time.md"
        )
        self.stream = stream


class LookUpError(StoreError):
    code = "look-up"


class ChangesExpiredError(StoreError):
    code = "changes-expired"


class QueryError(StoreError):
    """`status` is the HTTP status: 400 wrong, 408 too long, 413 too large, 503 interrupted.
    `view` is the name that no view has, where that is what is wrong."""

    code = "query"

    def __init__(
        self, message: str, *, hint: str = "", status: int = 400, view: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.view = view


class EngineError(HeadraceError):
    code = "engine"


class JavaMissingError(EngineError):
    code = "java-missing"


class ViewChangedError(EngineError):
    code = "view-changed"


class CoversError(HeadraceError):
    code = "bad-covers"


class ProofError(HeadraceError):
    code = "proof"


class KitError(HeadraceError):
    code = "kit"


class ClientError(HeadraceError):
    code = "client"


class UnreachableError(ClientError):
    code = "unreachable"


class RefusedError(ClientError):
    """`problem` is the server's problem document, `status` its HTTP status."""

    code = "refused"

    def __init__(self, status: int, problem: dict[str, object]) -> None:
        detail = problem.get("detail") or problem.get("title") or "no detail"
        super().__init__(f"HTTP {status}: {detail}", hint=str(problem.get("hint") or ""))
        self.status = status
        self.problem = problem


class BufferFullError(ClientError):
    code = "buffer-full"
