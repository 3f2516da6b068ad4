#!/usr/bin/env python3
"""What newer MLPerf Storage launchers start for each rank; they look for it beside kv-cache.py."""

import sys

import kv_cache

if getattr(kv_cache, "DISTRIBUTION", None) != "kv-cache-bench":
    sys.stderr.write(
        f"kv-cache: {kv_cache.__file__} is another project's package of the name kv_cache, and was "
        f"found before this program's; remove it: {sys.executable} -m pip uninstall kv-cache\n"
    )
    sys.exit(2)

from kv_cache.cli import console, rank_of_launcher

if __name__ == "__main__":
    console(rank_of_launcher)
