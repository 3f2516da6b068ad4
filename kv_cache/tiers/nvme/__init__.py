"""Storage as a tier: a layout (what is a file) times an I/O engine (how bytes get there)."""

from kv_cache.tiers.nvme.engines import ENGINES, choose_engine
from kv_cache.tiers.nvme.files import FileStore

__all__ = ["ENGINES", "FileStore", "choose_engine"]
