"""The order of the suite: fast tests first, so that a mistake shows within seconds.

A test's stage is its marker, else the stage of its folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = ("unit", "contract", "spark", "end_to_end")
FOLDERS = {
    "model": "unit",
    "compile": "unit",
    "tidy": "unit",
    "cli": "unit",
    "demo": "unit",
    "log": "contract",
    "store": "contract",
    "gateway": "contract",
    "serve": "contract",
    "client": "contract",
    "bench": "contract",
    "engine": "spark",
    "end_to_end": "end_to_end",
}
_ROOT = Path(__file__).parent


def _stage(item: pytest.Item) -> str:
    for stage in STAGES:
        if item.get_closest_marker(stage) is not None:
            return stage
    folder = item.path.relative_to(_ROOT).parts[0]
    stage = FOLDERS.get(folder, "end_to_end")
    item.add_marker(getattr(pytest.mark, stage))
    return stage


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: STAGES.index(_stage(item)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of a run, with the engine's own settings."""
    from headrace.engine.session import start_spark, stop_spark
    from headrace.model.settings import EngineSettings, Settings

    directory = tmp_path_factory.mktemp("spark")
    settings = Settings(directory, engine=EngineSettings(java_heap_mebibytes=1_024))
    yield (session := start_spark(settings))
    stop_spark(session)
