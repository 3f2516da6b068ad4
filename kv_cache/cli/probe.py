"""`kv-cache.py probe --cache-dir D`: measure a device in a minute or two, and keep the numbers."""

from collections.abc import Sequence

from kv_cache.app.probe import DriveProbe, ProbeJob, ProbeOptions, checked, probe
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_kept, print_plain, print_planned
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.profile import profile_values
from kv_cache.core.exits import Exit
from kv_cache.core.units import human_bytes
from kv_cache.view.probe import probe_view, refusal_texts
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="probe",
    options=ProbeOptions,
    about="""\
    Measure the device behind a directory: service time (p50, p99, mean) and bandwidth of reads and
    writes by object size, concurrency and share of reads, with direct I/O on unique data, in random
    order; reads of data that was not read since it was written, and of the same data again (a
    host's cache shows there).

    The table is printed, and written to a hardware profile that virtual time can be given:
    kv-cache.py run --virtual-time --profile FILE
    """,
    epilog="""\
    examples:
      kv-cache.py probe --cache-dir /mnt/nvme/kv
      kv-cache.py probe --cache-dir /mnt/nvme/kv --size-gib 20 --seconds 300 --profile nvme.yaml
      kv-cache.py probe --cache-dir /mnt/nvme/kv --sizes 512,4KiB,64KiB --concurrency 16,256

    A slow device takes longer than --seconds: each thread does at least 3 operations in each step.
    Other work on the device shows in the numbers.

    exit code: 0 done, 1 operations failed, 2 bad input, 130 and 143 interrupted (nothing is
    written)
    """,
)


def main(argv: Sequence[str]) -> int:
    """Measure and write; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    job = checked(options)
    if options.dry_run:
        print_planned({**planned_rows(job), "profile": str(job.output)})
        return Exit.DONE
    with interrupts() as caught:
        result = probe(job, stop=caught, progress=TerminalProgress())
        if caught.came:
            print("interrupted; no profile is written")
            return caught.exit_code
    print_plain(probe_text(result))
    if result.kept is not None:
        print_kept("profile", result.kept)
    return result.end


def planned_rows(job: ProbeJob) -> dict[str, str]:
    """Return what a probe would do to its drive, for --dry-run."""
    plan = job.plan
    sizes = ", ".join(map(human_bytes, plan.sizes))
    return {
        "directory": f"{job.directory} on {job.device}",
        "data": f"{human_bytes(plan.capacity_bytes)} of files, removed at the end",
        "objects": f"{sizes}, with {', '.join(map(str, plan.concurrencies))} in flight",
        "time": f"about {plan.seconds:g} s",
        "memory": human_bytes(plan.memory_bytes()),
    }


def probe_text(result: DriveProbe) -> str:
    """Return what a probe measured, and what could not be removed, for a person."""
    left = [f"  ! not removed: {path}" for path in result.left]
    if result.profile is not None:
        return "\n".join([terminal(probe_view(profile_values(result.profile))), *left])
    reasons = [f"  ! {text}" for text in refusal_texts(result.probed.refused)]
    return "\n".join(["nothing could be measured:", *reasons, *left])
