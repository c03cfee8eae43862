"""The house rules that a machine can check."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "base", "misc"}
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|HA" + r"CK|NotImplemented" + r"Error)\b")


def _tracked() -> list[Path]:
    """What is in the repository, and what is about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [file for name in listed if (file := REPOSITORY / name).is_file()]


FILES = _tracked()
TEXTS = [f for f in FILES if f.suffix in (".py", ".md", ".sql", ".toml", ".yaml") or not f.suffix]


def _named(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


def test_there_are_files() -> None:
    assert len(FILES) > 50


def test_no_file_is_named_for_nothing() -> None:
    assert [_named(f) for f in FILES if f.stem.lower() in FORBIDDEN_STEMS] == []


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{_named(file)}:{number}: {line.strip()}"
        for file in TEXTS
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_seeds_come_from_the_fixture() -> None:
    """`make test-long` gives them: a test that parametrizes its own cannot be collected there."""
    own = re.compile(r"parametrize\(\s*[\"'\[(][^)\]]*?\bseed\b[\"',]")
    tests = [f for f in FILES if f.suffix == ".py" and f.parts[-2] != "tests"]
    assert [_named(f) for f in tests if own.search(f.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "requirements-build.lock"]
)
def test_locks_hold_names_and_hashes_only(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    for line in text.splitlines():
        assert re.fullmatch(
            r"[a-z0-9][a-z0-9._-]*==[^\s]+( ; [^\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?",
            line,
        ), line


def test_locks_agree() -> None:
    pin = re.compile(r"^([a-z0-9._-]+==\S+(?: ; [^\\]+)?) \\$", re.MULTILINE)
    runtime = set(pin.findall((REPOSITORY / "requirements.lock").read_text()))
    development = set(pin.findall((REPOSITORY / "requirements-dev.lock").read_text()))
    assert runtime
    assert runtime <= development
