"""A real-I/O storage benchmark for the KV caches of LLM serving.

Start reading at `docs/architecture.md`, then `kv_cache/lifecycle.py`.
"""

__version__ = "0.8.0"

DISTRIBUTION = "kv-cache-bench"
"""Tells this package from a stranger's of the same name on PyPI."""
