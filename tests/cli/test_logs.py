from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from headrace.cli.logs import redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer [redacted]"),
        ('{"token": "abc"}', '{"token": "[redacted]"}'),
        ("secret=abc&x=1", "secret=[redacted]&x=1"),
        ("Headrace-Internal: abc", "Headrace-Internal: [redacted]"),
        ("given hr_" + "a" * 43 + ".", "given hr_[redacted]."),
        ("tokens are listed", "tokens are listed"),
    ],
)
def test_secrets_are_struck_out(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize("log_format", ["people", "json"])
def test_log_lines(log_format: str) -> None:
    script = (
        "import logging; from headrace.cli.logs import LogFormat, configure\n"
        f"configure(LogFormat({log_format!r}), 'engine')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.getLogger('a.b').exception('token=%s', 'abc')\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stderr
    assert "abc" not in said
    assert "ZeroDivisionError" in said
    if log_format == "json":
        line = json.loads(said)
        assert line["level"] == logging.getLevelName(logging.ERROR).lower()
        assert (line["process"], line["logger"]) == ("engine", "a.b")
