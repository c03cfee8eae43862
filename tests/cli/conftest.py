from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def headrace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """The command, run in this process: headrace("validate", "--json")."""

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, words)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return Ended(code or 0, said.out, said.err)

    return run
