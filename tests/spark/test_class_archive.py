"""The archive of classes is made by a real Java, used by it, and never in its way."""

from __future__ import annotations

import shlex
import subprocess
import threading
from pathlib import Path

import pytest

from headrace.spark import class_archive as archive
from headrace.spark.java import Java, find_java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return find_java()


@pytest.fixture
def class_list(tmp_path: Path) -> Path:
    file = tmp_path / "classes.list"
    file.write_text("java/lang/Object\njava/lang/String\njava/util/ArrayList\njava/util/HashM")
    return file


def _build(java: Java, class_list: Path) -> bool:
    return archive.build_archive(java, class_list, "", threading.Event())


def _version(java: Java, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(java.home / "bin" / "java"), *options, "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_start_without_archive_writes_the_list_of_classes(java: Java, tmp_path: Path) -> None:
    written = tmp_path / "some classes.list"
    options = archive.archive_options(java, written)
    assert _version(java, *shlex.split(" ".join(options))).returncode == 0
    assert "java/lang/Object" in written.read_text()


def test_the_archive_is_made_once_and_java_starts_from_it(java: Java, class_list: Path) -> None:
    assert _build(java, class_list)
    assert not _build(java, class_list)
    options = shlex.split(" ".join(archive.archive_options(java, class_list)))
    assert f"-XX:SharedArchiveFile={archive.archive_file(java)}" in options
    started = _version(java, *options, "-Xshare:on")  # fails unless the archive is used
    assert started.returncode == 0, started.stderr + started.stdout


def test_java_passes_over_an_archive_that_is_broken(java: Java, class_list: Path) -> None:
    assert _build(java, class_list)
    file = archive.archive_file(java)
    file.unlink()
    file.write_bytes(b"not an archive" * 1_000)
    started = _version(java, *shlex.split(" ".join(archive.archive_options(java, class_list))))
    assert started.returncode == 0
    assert "rror" not in started.stdout + started.stderr


def test_an_engine_that_ends_first_makes_none(java: Java, class_list: Path) -> None:
    ending = threading.Event()
    ending.set()
    archive.build_later(java, class_list, "", ending)
    assert not archive.archive_file(java).exists()


def test_a_list_java_cannot_use_leaves_nothing_behind(java: Java, tmp_path: Path) -> None:
    broken = Java(tmp_path / "no java", java.version, java.origin)
    (broken.home / "bin").mkdir(parents=True)
    (broken.home / "bin" / "java").symlink_to("/bin/false")
    (tmp_path / "list").write_text("java/lang/Object\n")
    assert not _build(broken, tmp_path / "list")
    assert list(archive.archive_file(broken).parent.glob("*.jsa")) == []


def test_older_archives_make_room(java: Java, class_list: Path) -> None:
    folder = archive.archive_file(java).parent
    folder.mkdir(parents=True)
    for number in range(archive.ARCHIVES_MAX + 2):
        (folder / f"spark-{number}.jsa").touch()
    assert _build(java, class_list)
    assert archive.archive_file(java).exists()
    assert len(list(folder.glob("spark-*.jsa"))) == archive.ARCHIVES_MAX


def test_without_a_home_there_are_no_options(
    java: Java, class_list: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert archive.archive_options(java, class_list) == []
