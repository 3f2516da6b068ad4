"""How long tasks stood still for want of I/O, memory or CPU: the kernel's pressure stall
information (PSI), source accounting/psi.rst.

`some`: at least one task of the machine waited; `full`: none did anything else meanwhile. In a
virtual machine `total` can be well below the time that was really stalled, so a share made of it
compares windows of one run with each other, and is not a fraction of time.
"""

from pathlib import Path

from kv_cache.bench.procfs import text_of

RESOURCES = ("io", "memory", "cpu")


def read_pressure(root: Path = Path("/")) -> dict[tuple[str, str], int]:
    """Return the `total` since the machine's start in µs, by (resource, `some` or `full`). Empty
    if the kernel was built without PSI or booted with psi=0."""
    return {
        (resource, kind): total_us
        for resource in RESOURCES
        for kind, total_us in totals_us(text_of(root / "proc/pressure" / resource) or "").items()
    }


def totals_us(text: str) -> dict[str, int]:
    """Parse `some avg10=0.00 avg60=0.00 avg300=0.00 total=123` and the same of `full`."""
    lines = (line.split() for line in text.splitlines())
    return {
        words[0]: int(words[-1].removeprefix("total="))
        for words in lines
        if words and words[-1].startswith("total=")
    }
