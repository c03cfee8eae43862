"""The engine's fixtures."""

from __future__ import annotations

from engine_fixtures import make_rig, make_shared_rig, shop

__all__ = ["make_rig", "make_shared_rig", "shop"]
