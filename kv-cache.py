#!/usr/bin/env python3
"""The benchmark's command line, under the name that launchers look for."""

from kv_cache.cli import console

if __name__ == "__main__":
    console()
