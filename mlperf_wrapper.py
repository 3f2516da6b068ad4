#!/usr/bin/env python3
"""What newer MLPerf Storage launchers start for each rank; they look for it beside kv-cache.py."""

from kv_cache.cli import console
from kv_cache.cli.wrapper import main

if __name__ == "__main__":
    console(main)
