"""Prints how many lines each package has (`make lint`): to be seen in CI, not a limit."""

import sys
from collections import Counter
from pathlib import Path

from tests.cli import ROOT


def lines_by_package(source: Path) -> Counter[str]:
    """Return the lines of Python below `source` by the first folder; "" are the modules beside."""
    count: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        within = path.relative_to(source).parts
        count[within[0] if len(within) > 1 else ""] += len(path.read_text().splitlines())
    return count


def shown(count: Counter[str]) -> str:
    packages = ", ".join(f"{name or 'top'} {lines:,}" for name, lines in count.most_common())
    return f"{count.total():,} ({packages})"


if __name__ == "__main__":
    for folder in ("kv_cache", "tests"):
        sys.stdout.write(f"lines of {folder}: {shown(lines_by_package(ROOT / folder))}\n")
