"""`kv-cache.py report RESULT…`: results as pages for people, or for other tools."""

import sys
from collections.abc import Sequence

from kv_cache.app.report import ReportOptions, report
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_plain
from kv_cache.core.exits import Exit
from kv_cache.view.forms import FORMATS

_FORMS = "".join(f"\n      {name:<10}{form.help_text}" for name, form in FORMATS.items())

COMMAND = Command(
    name="report",
    options=ReportOptions,
    about=f"""\
    Show results in another form: as a page for a browser, or for other programs. Several are shown
    side by side, the first being the baseline.

    A file that report did not write is never replaced.

    forms:{_FORMS}
    """,
    epilog="""\
    examples:
      kv-cache.py report result.json
      kv-cache.py report runs/run-20261121T204838Z-seed3
      kv-cache.py report old-drive.json new-drive.json -o drives.html
      kv-cache.py report old.json new.json --output comparison.md
      kv-cache.py report runs/* --output all.csv
      kv-cache.py report result.json --format hdr --output latencies.hlog

    exit code: 0 done, 2 bad input or a library that is missing
    """,
)


def main(argv: Sequence[str]) -> int:
    """Read all, then write; the exit code. UsageError is the caller's to print."""
    rendered = report(COMMAND.parse(argv))
    if rendered.path is None:
        sys.stdout.buffer.write(rendered.data)
    else:
        print_plain(f"{rendered.form}  {rendered.path}")
    return Exit.DONE
