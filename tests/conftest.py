"""The order of the suite: fast tests first, so that a mistake shows within seconds.

A test's stage is its marker, else the stage of its folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

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
