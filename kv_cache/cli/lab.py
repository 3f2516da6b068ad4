"""`kv-cache.py lab PATH | --users | --pattern NAMES`: what policies find at many capacities."""

import sys
from collections.abc import Sequence

from kv_cache.app.lab import LabOptions, configured, lab, planned_lab
from kv_cache.app.trace_source import TraceSource
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.command import Command
from kv_cache.cli.flags import begin_logging, log_environment
from kv_cache.cli.printing import print_json, print_study
from kv_cache.cli.progress import TerminalProgress
from kv_cache.core.exits import Exit
from kv_cache.lab.patterns import PATTERNS
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="lab",
    options=LabOptions,
    of_run=True,
    abbreviations=True,
    about="""\
    What would policies find in this trace, at these capacities? One pass; no clock, no device.

    Beside the policies stand the cache without limits and Belady's MIN, which no policy exceeds.
    Hits are counted twice: by blocks (each block for itself) and by prefix (only while all blocks
    before it in its request are hits, as attention needs). Policies are put in an order only where
    that is shown.
    """,
    epilog=f"""\
    patterns: {", ".join(PATTERNS)}

    examples:
      kv-cache.py lab mooncake.jsonl
      kv-cache.py lab mooncake.jsonl --capacities 100GiB,1TiB,9971blocks --csv found.csv
      kv-cache.py lab mooncake.jsonl --residency fp16,int4 --dequant int4=0.02 \\
          --dequant-source "kernel X on device Y, 2026-03"
      kv-cache.py lab --pattern all --seeds 20

    Those that change what is asked are of use (--block-tokens, --model, --trace-format,
    --skip-bad-rows, --seed, ...); with --pattern only --seed and --no-progress.

    exit code: 0 done, 1 a file is not where it was to be, 2 bad input, 130 and 143 interrupted
    """,
)


def main(argv: Sequence[str]) -> int:
    """Compare policies; the exit code. UsageError is the caller's to print."""
    options, invocation = COMMAND.parse_with_run(argv)
    begin_logging(invocation.log_level)
    log_environment(invocation.environment.values())
    source = configured(options, invocation)
    if invocation.dry_run:
        print(terminal(planned_lab(options, source)))
        return Exit.DONE
    wanted = source.config.output.progress if isinstance(source, TraceSource) else source.progress
    progress = TerminalProgress(wanted)
    with interrupts() as caught:
        result = lab(options, source, stop=caught, progress=progress)
        if result is None:
            print(f"kv-cache: lab: {caught.name}: nothing is written", file=sys.stderr)
            return caught.exit_code
        if options.json:
            print_json(result.document)
        else:
            print_study(result)
        return result.end
