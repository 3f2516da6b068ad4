"""`python -m kv_cache.cli`."""

from kv_cache.cli import console

console()
