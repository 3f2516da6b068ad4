"""Python as it is on an operating system that is not Linux.

`python elsewhere.py ARGUMENT…` runs the program there, `python elsewhere.py --import PACKAGE…`
imports all modules of packages. What Windows or macOS lacks is taken away before the program is
imported; other packages, which have builds of their own for each system, are imported before.
"""

import concurrent.futures
import ctypes
import http.server
import importlib
import importlib.abc
import mmap
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy
import orjson
import psutil
import tqdm
import yaml

IMPORTED = (
    *(concurrent.futures, ctypes, http.server, multiprocessing, subprocess, tempfile),
    *(msgspec, numpy, orjson, psutil, tqdm, yaml),
)
"""Before anything is taken away."""

MODULES = frozenset({"fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "syslog"})
PORTABLE_FLAGS = frozenset({"O_RDONLY", "O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL", "O_TRUNC"})
CALLS = frozenset(
    {
        *("uname", "statvfs", "fstatvfs", "geteuid", "getuid", "getegid", "getgid", "getgroups"),
        *("pread", "pwrite", "preadv", "pwritev", "fdatasync", "memfd_create", "sysconf", "fork"),
        *("getloadavg", "killpg", "setsid", "getpgid", "getpgrp", "WNOHANG", "eventfd"),
    }
)
OF_LINUX = ("O_", "sched_", "SCHED_", "ST_", "posix_", "POSIX_", "RWF_")
SIGNALS = frozenset(
    {
        *("SIGHUP", "SIGKILL", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH", "SIGPIPE"),
        *("SIGQUIT", "SIGTSTP", "SIGCHLD", "sigtimedwait", "sigwaitinfo", "pthread_sigmask"),
        *("pthread_kill", "setitimer"),
    }
)


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def leave_linux() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    for name in set(vars(os)) - PORTABLE_FLAGS:
        if name in CALLS or name.startswith(OF_LINUX):
            delattr(os, name)
    for name in SIGNALS & set(vars(signal)):
        delattr(signal, name)
    for name in list(vars(mmap)):
        if name.startswith(("MAP_", "MADV_", "PROT_")):
            delattr(mmap, name)
    os.cpu_count = lambda: 1  # a process started from here would be on Linux again


def import_all(package: str) -> None:
    """Import every module of a package: what cannot be imported ends this process."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}.", onerror=_raise):
        importlib.import_module(module.name)


def _raise(name: str) -> None:
    raise ImportError(name)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    leave_linux()
    if sys.argv[1:2] == ["--import"]:
        for each in sys.argv[2:]:
            import_all(each)
    else:
        from kv_cache.cli import console

        console()
