"""`kv-cache.py calibrate`: what is measured of a machine, and known of the rest, in one file."""

from collections.abc import Sequence

from kv_cache.app.calibrate import CalibrateOptions, CalibrationPlan, calibrate, checked
from kv_cache.app.probe import DriveProbe
from kv_cache.bench.dram import Copied, NotCopied
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_kept, print_plain, print_planned
from kv_cache.cli.probe import planned_rows, probe_text
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.hardware import readiness_text
from kv_cache.core.exits import Exit
from kv_cache.core.format import gib_per_s

COMMAND = Command(
    name="calibrate",
    options=CalibrateOptions,
    about="""\
    Measure a machine, add what is known of the parts that are not here, and write one hardware
    profile: the curves of each drive (as probe), how fast memory is copied, and overlays. Prints
    which sections are measured, which are overlays with a source, which are missing, and so which
    questions the profile can carry.

    predict, run --predict and sim read the file.
    """,
    epilog="""\
    examples:
      kv-cache.py calibrate --cache-dir /mnt/nvme/kv --output machine.yaml
      kv-cache.py calibrate --cache-dir fast=/mnt/a/kv --cache-dir slow=/mnt/b/kv --overlay h.yaml
      kv-cache.py calibrate --probe profile-nvme0n1.yaml --no-dram --overlay rack.yaml

    The files are measured as run writes them by default (--layout file, no fsync); give the same
    --layout and --fsync as the runs that are to be predicted (--semantics mlperf: --fsync object).

    exit code: 0 done, 1 something could not be measured or written, 2 bad input, 130 and 143
    interrupted (no hardware profile is written)
    """,
)

_MOST_SPREAD = 0.5  # of the copies of memory, beyond which a warning is printed


def main(argv: Sequence[str]) -> int:
    """Measure and write; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    plan = checked(options)
    if options.dry_run:
        print_planned(_planned_rows(plan))
        return Exit.DONE
    with interrupts() as caught:
        progress = TerminalProgress()
        result = calibrate(
            plan, stop=caught, progress=progress, on_drive=_print_drive, on_memory=_print_memory
        )
    if result is None:
        print("interrupted; no hardware profile is written")
        return caught.exit_code
    print_plain(f"\n{readiness_text(result.hardware)}")
    print_kept("hardware", result.kept)
    return result.end


def _planned_rows(plan: CalibrationPlan) -> dict[str, str]:
    rows = {"memory": "copied for some seconds"} if plan.dram else {}
    for name, job in plan.to_measure.items():
        drive = {**planned_rows(job), "probe": str(job.output)}
        rows |= {f"{name} {what}": text for what, text in drive.items()}
    rows |= {f"{name} probe": f"{file}, as it is" for name, file in plan.measured.items()}
    rows |= {"overlays": ", ".join(text for text, _ in plan.overlays)} if plan.overlays else {}
    return {**rows, "hardware": str(plan.output)}


def _print_drive(name: str, result: DriveProbe) -> None:
    print_plain(f"{name}: {probe_text(result)}")
    if result.kept is not None:
        print_kept("probe", result.kept)


def _print_memory(copied: Copied | NotCopied) -> None:
    if isinstance(copied, NotCopied):
        print(f"memory is not measured: {copied.reason}")
        return
    print(
        f"memory: {gib_per_s(copied.bytes_per_s)} copied by {copied.threads} threads, "
        f"{gib_per_s(copied.one_thread_bytes_per_s)} by one (median of {copied.passes}, spread "
        f"{copied.spread:.0%})"
    )
    if copied.spread > _MOST_SPREAD:
        print("  ! the passes differ by much: other work ran; calibrate again when it does not")
