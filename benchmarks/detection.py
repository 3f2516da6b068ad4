"""Each way to a false number that we know of is tried, and none may end VALID.

    python benchmarks/detection.py [--write]

As root, on an idle machine. Each way is a test that really does it (a device, a signal, a library,
a neighbour) and looks at what the rules say. Prints the table; `--write` puts it into
docs/reference/detection.md with the day and the machine.
"""

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "docs" / "reference" / "detection.md"


class Way(NamedTuple):
    """A way to a false number: what is done, the rules that must name it, and the test."""

    what: str
    rules: str
    test: str


_PASSPORT, _STACK = "tests/integration/test_passport.py", "tests/integration/test_stack.py"
_VERIFY, _STALLS = "tests/integration/test_verify.py", "tests/integration/test_stalls.py"
WAYS = [
    *(Way(what, rules, f"{_STACK}::{name}") for what, rules, name in (
        ("loop device without direct I/O", "V27", "test_a_loop_device_without_direct_io_is_named"),
        ("file system on a file in memory", "V27",
         "test_a_file_system_on_a_file_in_memory_is_named"),
        ("file system on zram", "V27", "test_a_file_system_on_zram_is_named"),
        ("one drive of two in memory", "V27", "test_one_drive_in_memory_among_two_is_named"),
        ("FUSE below a loop device", "V28",
         "test_a_process_below_the_loop_device_is_named_and_nothing_else"),
        ("page cache above an end that cannot be seen", "V27, V28",
         "test_a_page_cache_above_an_end_that_cannot_be_seen_is_named_too"),
        ("ext4 without barriers, with fsync", "V31",
         "test_a_mount_without_barriers_is_named_where_writes_are_synced"),
        ("no barriers below the file of a loop device", "V31",
         "test_a_mount_without_barriers_below_the_file_of_a_loop_device_is_named"),
        ("reader on another partition of the disk", "V23",
         "test_what_others_read_from_another_partition_of_the_disk_is_foreign"),
    )),
    *(Way(what, rules, f"{_PASSPORT}::{name}") for what, rules, name in (
        ("buffered reads of what was never written back", "V1",
         "test_reads_of_pages_that_were_never_written_back_are_named"),
        ("cache files read by somebody else too", "V1",
         "test_somebody_who_reads_the_cache_files_too_is_named"),
        ("payload that a drive could reduce", "V2",
         "test_a_payload_that_a_drive_could_reduce_is_named"),
        ("library that takes O_DIRECT away", "V4",
         "test_a_library_that_takes_o_direct_away_is_named"),
        ("file system that only seems to do direct I/O", "V3, V27",
         "test_a_file_system_that_only_seems_to_do_direct_io_is_named"),
        ("direct reads that come from memory (data=journal)", "V1, V6, V27",
         "test_direct_reads_that_come_from_memory_are_named"),
        ("preload that bears the C library's name", "V4",
         "test_a_library_that_has_the_c_librarys_name_and_not_its_place_is_named"),
        ("LD_AUDIT", "V4", "test_a_library_that_audits_all_calls_is_named"),
        ("LD_AUDIT from shared memory, its variable hidden", "V4",
         "test_a_library_that_audits_from_shared_memory_and_hides_the_variable_is_named"),
        ("seccomp filter that answers fsync", "V31",
         "test_an_fsync_that_a_filter_answers_is_named"),
        ("clock at half speed", "V21, V4", "test_a_clock_at_half_speed_is_named"),
        ("clock that jumps", "V21", "test_a_clock_that_jumps_is_named"),
        ("eatmydata: fsync that does nothing", "V4", "test_eatmydata_is_named"),
        ("faked posix_fadvise", "V4, V1",
         "test_a_faked_posix_fadvise_is_named_and_so_is_what_it_does"),
        ("memory in the place of a device", "V5", "test_memory_in_the_place_of_a_device_is_named"),
        ("writes that are acknowledged and never done", "V6, V19",
         "test_writes_that_are_acknowledged_and_never_done_are_named"),
        ("I/O that no result shows", "V6", "test_io_that_no_result_shows_is_named"),
        ("interrupted run", "V12", "test_an_interrupted_run_is_named"),
        ("window in which nothing completed", "V12",
         "test_a_window_in_which_nothing_completed_is_named"),
        ("operation that failed", "V12", "test_an_operation_that_failed_is_named"),
        ("records that did not fit", "V12", "test_records_that_did_not_fit_are_named"),
        ("run that measures the client", "V13", "test_a_run_that_measures_the_client_is_named"),
        ("others on all cores", "V13", "test_others_who_use_all_cores_are_named"),
        ("harness that is late", "V25", "test_a_harness_that_is_late_is_named"),
        ("run stopped for a tenth of its window", "V25",
         "test_a_run_that_was_stopped_for_a_tenth_of_its_window_is_named"),
        ("schedule that is not kept", "V15", "test_a_schedule_that_is_not_kept_is_named"),
        ("run that never touches storage", "V18",
         "test_a_run_that_never_touches_storage_is_named"),
        ("next to no data", "V30",
         "test_next_to_no_data_is_no_result_unless_a_test_declares_itself"),
        ("bit that flipped on the disk", "V22", "test_a_bit_that_flipped_on_the_disk_is_named"),
        ("nothing verified", "V22", "test_a_run_that_verifies_nothing_is_named"),
        ("neighbour on the same file system", "V23",
         "test_a_neighbour_on_the_same_file_system_is_named"),
        ("I/O limit of a cgroup", "V24", "test_a_limit_on_the_disk_is_named"),
        ("CPU limit that stopped the run", "V24",
         "test_a_limit_of_the_cpu_that_stopped_the_run_is_named"),
        ("virtual time", "V26", "test_virtual_time_measures_nothing"),
    )),
    Way("device that hangs to the end of the window", "V29",
        f"{_STALLS}::test_a_device_that_hangs_to_the_end_of_the_window_is_suspect"),
    Way("two seconds without an answer in the middle", "V29",
        f"{_STALLS}::test_two_seconds_without_an_answer_in_the_middle_of_a_window_are_suspect"),
    Way("result whose window was halved, resealed", "verify",
        f"{_VERIFY}::test_a_window_that_was_halved_holds_more_time_than_there_is"),
    Way("number that was forged and resealed", "verify",
        f"{_VERIFY}::test_a_forged_number_is_told_though_the_hashes_fit"),
    Way("all numbers made to fit, against the records", "verify",
        f"{_VERIFY}::test_numbers_that_were_all_made_to_fit_are_told_by_the_records"),
    Way("any value of a result changed", "verify",
        f"{_VERIFY}::test_any_value_that_is_changed_is_noticed"),
    Way("preconditioning that decays without end", "V14",
        "tests/unit/test_steady.py"),
]  # fmt: skip


def tried(ways: Iterable[Way]) -> list[tuple[Way, str]]:
    """Return what became of each way: named, NOT NAMED, or why it was not tried."""
    rows = []
    for way in ways:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "nightly or not nightly",
             "-rs", way.test],
            cwd=HERE, capture_output=True, text=True, check=False,
        )  # fmt: skip
        skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        passed = done.returncode == 0 and " passed" in done.stdout
        outcome = "named" if passed else "not tried" if skipped else "NOT NAMED"
        print(f"{outcome:10} {way.rules:12} {way.what}", *skipped, flush=True)
        rows.append((way, outcome))
    return rows


def page(rows: list[tuple[Way, str]]) -> str:
    lines = [
        "# Ways to a false number",
        "",
        "Each is really done by a test, and what the rules say is looked at. `named`: the run is",
        "not VALID, or `verify` does not let the result pass, by the rules that must say so.",
        f"Last tried on {time.strftime('%Y-%m-%d')}, Linux {platform.release()}, by",
        "`python benchmarks/detection.py --write` (as root, on an idle machine).",
        "",
        "| what is done | named by | outcome | test |",
        "|---|---|---|---|",
    ]
    for way, outcome in rows:
        name = way.test.rpartition("::")[2]
        lines.append(f"| {way.what} | {way.rules} | {outcome} | `{name}` |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = tried(WAYS)
    if given.write:
        PAGE.write_text(page(rows))
    missed = [way.what for way, outcome in rows if outcome == "NOT NAMED"]
    print(f"{len(rows)} ways, {len(missed)} not named: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
