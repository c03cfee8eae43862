"""Every file of the log says its format, and one from a later version is refused, not misread."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.log.contract import Group
from headrace.log.embedded import archive, checkpoints, journal, retention_floor, segments
from headrace.log.embedded.backend import open_reader, open_writer
from headrace.log.embedded.index import index_head
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import LogError
from headrace.model.settings import GatewaySettings, LogSettings

LATER = {
    "segment": [(segments, "_FORMAT", 3), (segments, "_FORMATS_READ", (3,))],
    "index": [(segments, "_INDEX_HEAD", index_head(3))],
    "journal": [(journal, "_FORMAT", 3)],
    "checkpoint": [(checkpoints, "_FORMAT", 3)],
    "retention floor": [(retention_floor, "_FORMAT", 3)],
    "archive": [(archive, "_FORMAT_NOW", 3)],
}


@pytest.mark.parametrize("file", ["layout", *LATER])
def test_a_file_of_a_later_format_is_refused(
    tmp_path: Path, shop: Any, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = Retention(age_microseconds=1, action=RetentionAction.ARCHIVE)
    stream = shop.stream(partitions=1, retention=archived)
    directory, settings = tmp_path / "log", LogSettings(segment_bytes_max=4_096)

    def opened() -> Any:
        return closing(open_writer(directory, [stream], settings, GatewaySettings()))

    with monkeypatch.context() as later:
        for changed in LATER.get(file, []):
            later.setattr(*changed)
        with opened() as writer:
            for number in range(10):
                writer.append(Group((shop.to(stream, 0, number * 20, 20),)))
            retention_floor.write_retention_floor(directory, {"transactions": (100,)})
            writer.retain(10**12)
    if file == "layout":
        layout = directory / "layout.json"
        layout.write_text(json.dumps({**json.loads(layout.read_text()), "format": 3}))

    def used() -> None:
        with opened() as writer:
            writer.retain(10**12)
            reader = open_reader(directory, [stream])
            list(reader.read_history("transactions", 0, 0, 200))

    with pytest.raises(LogError, match="format 3, this version reads"):
        used()
