"""`kv-cache.py precondition`: bring a device into a steady state, and prove it."""

from collections.abc import Sequence

from kv_cache.app.precondition import configured, precondition
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.beginning import begin, dry_run
from kv_cache.cli.command import Command, OfRun
from kv_cache.cli.printing import print_result
from kv_cache.cli.progress import TerminalProgress

COMMAND = Command(
    name="precondition",
    options=OfRun,
    of_run=True,
    about="""\
    Fill the device: --precondition-size-gb GiB in all (0 = twice --storage-capacity-gb), written
    sequentially into files that are removed again. Then run the workload that the other options
    describe, in rounds of --round seconds, until the bandwidth of five rounds is steady by the rule
    of the SNIA Performance Test Specification (range at most 20 % of the average, best-fit line at
    most 10 %), or --max-rounds are over. The result is printed and written to --output.
    """,
    epilog="""\
    examples:
      kv-cache.py precondition --cache-dir /mnt/nvme/kv --storage-capacity-gb 400
      kv-cache.py precondition --cache-dir /mnt/nvme/kv --storage-capacity-gb 400 --max-rounds 0

    The same before a measurement, in one go: kv-cache.py run --precondition.

    exit code: 0 done (the verdict says whether it is steady), 1 broken, 2 bad input, 130, 143
    """,
)


def main(argv: Sequence[str]) -> int:
    """Precondition; the exit code. UsageError is the caller's to print."""
    _, invocation = COMMAND.parse_with_run(argv)
    notes = begin(invocation)
    config = configured(invocation)
    if invocation.dry_run:
        return dry_run(config, notes, ", after the fill and its rounds", "precondition")
    with interrupts() as caught:
        progress = TerminalProgress(config.output.progress)
        result = precondition(config, notes=notes, stop=caught, progress=progress)
    print_result(result)
    return result.end
