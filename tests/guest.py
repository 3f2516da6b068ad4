"""A virtual machine with a kernel, a clock and cgroups of its own, for what is not to be done to
the machine that runs the tests. Its root is this machine's, so the program is there."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import PROGRAM, ROOT

_PLACES = [Path(os.environ.get("KV_GUEST", "")), *(up / "shared/lab/guest" for up in ROOT.parents)]
GUEST = next((place for place in _PLACES if place.is_file()), None)

needs_guest = pytest.mark.skipif(
    GUEST is None or os.geteuid() != 0,
    reason="no virtual machine: it takes root, and a program that starts one ($KV_GUEST)",
)

_SCRIPT = """
set -eu
mkdir /run/drive
mkfs.ext4 -q -F /dev/nvme0n1
mount /dev/nvme0n1 /run/drive
{before}
{run} &
until [ "$(compgen -G '/run/drive/cache/*/*/*.kv' | wc -l)" -ge 3 ]; do kill -0 $!; sleep 0.2; done
{meanwhile}
wait $!
"""


def run_in_guest(cwd: Path, *flags: str, meanwhile: str, before: str = "") -> Any:
    """Run the program on a drive of a guest, with a script before it begins and one while it is at
    work, as `$!`: the section `kv_cache` of its result."""
    assert GUEST is not None
    words = [
        sys.executable, str(PROGRAM), "run", "--cache-dir=/run/drive/cache",
        f"--output={cwd}/R.json", "--no-progress", *flags,
    ]  # fmt: skip
    script = _SCRIPT.format(before=before, run=shlex.join(words), meanwhile=meanwhile)
    done = subprocess.run(
        [GUEST, "--nvme", "2G", "--out", cwd, "--timeout", "900", "--",
         "bash", "-c", script],
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return json.loads((cwd / "R.json").read_bytes())["kv_cache"]
