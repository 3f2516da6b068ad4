#!/usr/bin/env python3
"""What newer MLPerf Storage launchers start for each rank; they look for it beside kv-cache.py."""

import _signal  # type: ignore[import-not-found]  # signal imports much
import os
import sys

if __name__ == "__main__" and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # Until console() sees to it: KeyboardInterrupt within an import is a traceback, or worse.
    _signal.signal(_signal.SIGINT, lambda *_: os._exit(130))

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
