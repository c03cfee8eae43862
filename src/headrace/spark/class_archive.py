"""An archive of Spark's classes as Java holds them in memory: with it Java starts much sooner.

The first engine on a machine writes down which classes it loads and, once it has been live for a
while, lets a process of low priority make the archive from the list. It lies in the user's cache
folder, for every project with the same Java and the same Spark. Whatever goes wrong here costs
nothing but time at a later start: Java itself passes over an archive that does not fit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shlex
import subprocess
import threading
from pathlib import Path

from headrace.spark.java import Java

__all__ = ["archive_file", "archive_options", "build_archive", "build_later"]

log = logging.getLogger("headrace.engine")

BUILD_AFTER_SECONDS = 15.0  # the first ticks after a start have the machine to themselves
BUILD_SECONDS_MAX = 300.0
ARCHIVES_MAX = 2
_PRIORITY_LOWEST = 19


def archive_file(java: Java) -> Path:
    """Where the archive for this Java and this Spark is or will be."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    parts: list[object] = [pyspark.__version__]
    for path in (java.home / "bin" / "java", jars):
        parts += [path.resolve(), path.stat().st_mtime_ns]
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace" / f"spark-{name}.jsa"


def archive_options(java: Java, class_list: Path) -> list[str]:
    """Java's options to start from the archive, or to write `class_list` while there is none."""
    try:
        file = archive_file(java)
        found = file.exists()
    except (OSError, RuntimeError):  # no home folder, or one that cannot be looked into
        return []
    quiet = "-Xlog:cds=off,cds+dynamic=off,class+path=off"
    if found:
        return [shlex.quote(f"-XX:SharedArchiveFile={file}"), "-Xshare:auto", quiet]
    return [shlex.quote(f"-XX:DumpLoadedClassList={class_list}"), quiet]


def build_later(java: Java, class_list: Path, class_path: str, ending: threading.Event) -> None:
    """Make the archive if there is none, unless `ending` comes first."""
    if ending.wait(BUILD_AFTER_SECONDS):
        return
    try:
        if build_archive(java, class_list, class_path, ending):
            log.info("the classes of Spark are archived: the next start takes less time")
    except (OSError, RuntimeError) as error:
        log.info("the classes of Spark were not archived: %s", error)


def build_archive(java: Java, class_list: Path, class_path: str, ending: threading.Event) -> bool:
    """False when there is one already, another process is making it, or `ending` came."""
    file = archive_file(java)
    if file.exists() or not class_list.exists():
        return False
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (file.parent / "building.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        unfinished = file.parent / "building.jsa"
        unfinished.unlink(missing_ok=True)
        try:
            if not _dump(java, _whole_lines(class_list), class_path, unfinished, ending):
                return False
            _make_room(file.parent)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    return True


def _dump(
    java: Java, class_list: Path, class_path: str, target: Path, ending: threading.Event
) -> bool:
    command = [
        str(java.home / "bin" / "java"),
        "-Xshare:dump",
        f"-XX:SharedClassListFile={class_list}",
        f"-XX:SharedArchiveFile={target}",
        "-Xlog:disable",
        "-cp",
        class_path,
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _PRIORITY_LOWEST)
        for _ in range(int(BUILD_SECONDS_MAX)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=1.0) == 0 and target.exists()
            if ending.is_set():
                return False
        return False
    finally:
        process.kill()
        process.wait()


def _whole_lines(class_list: Path) -> Path:
    """A copy without the line that the running Java has not ended yet."""
    text = class_list.read_text()
    copy = class_list.with_suffix(".whole")
    copy.write_text(text[: text.rfind("\n") + 1])
    return copy


def _make_room(directory: Path) -> None:
    """The archives of an older Java or Spark go, the least recently made first."""
    archives = sorted(directory.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime_ns)
    for old in archives[: max(0, len(archives) - ARCHIVES_MAX + 1)]:
        old.unlink(missing_ok=True)
