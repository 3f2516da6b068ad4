"""`kv-cache.py capacity --slo …`: the most users, or requests/s, that keep the SLOs."""

from collections.abc import Sequence

from kv_cache.app.capacity import CapacityOptions, capacity, configured, planned_capacity
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.beginning import begin
from kv_cache.cli.command import Command
from kv_cache.cli.printing import gated, print_result, reason_to_fail
from kv_cache.cli.progress import TerminalProgress
from kv_cache.core.exits import Exit
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="capacity",
    options=CapacityOptions,
    of_run=True,
    about="""\
    Find the highest load at which this storage keeps its latency SLOs.

    The load is users of an open loop (they ask at their own pace and do not wait for answers), or
    with --by rate requests/s of Poisson arrivals. Latencies count from the instant at which a
    request was due, so a queue that the storage causes is part of them. Loads are widened until
    one misses an SLO, then the interval is closed; the answer is confirmed by more probes.
    """,
    epilog="""\
    Flags that end or scale a run (--duration, --max-requests, --request-rate, --num-users with
    --by users, --enable-autoscaling, --trials) are set by the search.

    examples:
      kv-cache.py capacity --slo "interactive:p95<50ms,responsive:p95<200ms" --cache-dir /mnt/kv
      kv-cache.py capacity --slo "batch:ttft:p99<2s" --by rate --first 5 --probe 60 --config my.yaml
      kv-cache.py capacity --slo "interactive:p95<50ms" --virtual-time --profile drive.yaml

    exit code: 0 done (whatever the answer), 1 broken, 2 bad input, 130 and 143 interrupted
    """,
)


def main(argv: Sequence[str]) -> int:
    """Search; the exit code. UsageError is the caller's to print."""
    options, invocation = COMMAND.parse_with_run(argv)
    notes = begin(invocation)
    config = configured(options, invocation)
    if invocation.dry_run:
        print(terminal(planned_capacity(options, config, notes)))
        return Exit.DONE
    with interrupts() as caught:
        progress = TerminalProgress(config.output.progress)
        result = capacity(options, config, notes=notes, stop=caught, progress=progress)
    print_result(result)
    return gated(result.end, reason_to_fail(result, config.output.fail_on))
