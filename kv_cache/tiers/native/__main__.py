"""`python -m kv_cache.tiers.native`: make the library, and say what came of it."""

import sys

from kv_cache.tiers.native.building import build

if outcome := build():
    sys.stdout.write(f"{outcome}\n")
