"""What a command costs before it does anything: CPU time beside `python -c "import argparse"`.

    python benchmarks/startup.py [--pairs N]

Each command and the interpreter take turns (A B B A); the table has the median of the pairs' ratios
and its interval. `--help` and `--version` are to take at most 4 times as much.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish, middle_ratio

PROGRAM = str(Path(__file__).resolve().parents[1] / "kv-cache.py")
BARE = ["-c", "import argparse"]
LIMIT = 4.0
LIMITED = (["--help"], ["--version"])
TOLD = (["--help-all"], ["verify", "--help"], ["probe", "--help"], ["sim", "--help"])


def cpu_s(argv: Sequence[str]) -> float:
    """CPU seconds, user's and system's, of one process that ended well."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def figures(pairs: int) -> list[Figure]:
    rows = []
    for words in (*LIMITED, *TOLD):
        command = [PROGRAM, *words]
        cpu_s(command)  # makes the bytecode
        ratios = []
        for pair in range(pairs):
            first, second = (BARE, command) if pair % 2 else (command, BARE)
            seen = [cpu_s(first), cpu_s(second)]
            ratios.append(seen[0] / seen[1] if first is command else seen[1] / seen[0])
        found = middle_ratio(ratios)
        limited = words in LIMITED
        rows.append(
            Figure(
                number="22",
                what=f"CPU time of {' '.join(words)}, of `import argparse`",
                wanted=f"at most {LIMIT:g}" if limited else "",
                seen=f"x{found}",
                met=not limited or found.median <= LIMIT,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=11)
    finish(figures(parser.parse_args().pairs))


if __name__ == "__main__":
    main()
