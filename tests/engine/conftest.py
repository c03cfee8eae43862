"""The engine's fixtures."""

from __future__ import annotations

from engine_fixtures import both_ways, make_rig, make_shared_rig, shop

__all__ = ["both_ways", "make_rig", "make_shared_rig", "shop"]
