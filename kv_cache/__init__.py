"""A real-I/O storage benchmark for the KV caches of LLM serving.

    from kv_cache import load_config, run, Result
    result = run(load_config("quick", {"run.num_users": 8, "tiers.cache_dir": ("/mnt/nvme/kv",)}))
    print(result.verdict, result.run.headline)

The other use cases are functions of `kv_cache.app`; the contracts of policies, trace formats and
engines of your own are in `kv_cache.testing`. To read the program, start at
`docs/architecture.md`, then `kv_cache/lifecycle.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kv_cache.app.run import run
    from kv_cache.config.load import load_config
    from kv_cache.config.root import Config
    from kv_cache.files.result import Result

__version__ = "0.8.0"

DISTRIBUTION = "kv-cache-bench"
"""Tells this package from a stranger's of the same name on PyPI."""

__all__ = ["Config", "Result", "__version__", "load_config", "run"]

_FACE = {
    "run": "kv_cache.app.run",
    "load_config": "kv_cache.config.load",
    "Config": "kv_cache.config.root",
    "Result": "kv_cache.files.result",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: `--help` imports nothing."""
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FACE[name]), name)
