"""Each way to a false number that we know of is tried, and none may end VALID.

    python benchmarks/detection.py [--write]

As root, on an idle machine, in about ten minutes. Each way is a test that really does it (a device,
a signal, a library, a neighbour) and looks at what the rules say. Prints the table; `--write` puts
it into docs/reference/detection.md with the day and the machine.
"""

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "docs" / "reference" / "detection.md"


class Origin(StrEnum):
    REVIEW = "tried by a stranger on an earlier version"
    SPECIFICATION = "what the verdict has to find by its specification"
    OWN = "thought out by us"


class Way(NamedTuple):
    """A way to a false number: what is done, the rules that must name it, the test, and who thought
    of it."""

    what: str
    rules: str
    test: str
    origin: Origin


_PASSPORT, _STACK = "tests/integration/test_passport.py", "tests/integration/test_stack.py"
_VERIFY, _STALLS = "tests/integration/test_verify.py", "tests/integration/test_stalls.py"
_MEANWHILE, _SERIES = "tests/integration/test_meanwhile.py", "tests/integration/test_trials.py"
_RANKS, _TRIALS = "tests/unit/test_merged_ranks.py", "tests/unit/test_trials.py"
_FORMS, _GUEST = "tests/unit/test_view_forms.py", "tests/integration/test_guest.py"
_TREE = "tests/integration/test_submission_tree.py"
WAYS = [
    *(Way(what, rules, f"{_STACK}::{name}", Origin.REVIEW) for what, rules, name in (
        ("loop device without direct I/O", "V27", "test_a_loop_device_without_direct_io_is_named"),
        ("file system on a file in memory", "V27",
         "test_a_file_system_on_a_file_in_memory_is_named"),
        ("file system on zram", "V27", "test_a_file_system_on_zram_is_named"),
        ("ext4 without barriers, with fsync", "V31",
         "test_a_mount_without_barriers_is_named_where_writes_are_synced"),
        ("reader on another partition of the disk", "V23",
         "test_what_others_read_from_another_partition_of_the_disk_is_foreign"),
    )),
    *(Way(what, rules, f"{_PASSPORT}::{name}", Origin.REVIEW) for what, rules, name in (
        ("neighbour on the same file system", "V23",
         "test_a_neighbour_on_the_same_file_system_is_named"),
        ("clock at half speed", "V21, V4", "test_a_clock_at_half_speed_is_named"),
        ("clock that jumps", "V21", "test_a_clock_that_jumps_is_named"),
        ("preload that bears the C library's name", "V4",
         "test_a_library_that_has_the_c_librarys_name_and_not_its_place_is_named"),
        ("LD_AUDIT", "V4", "test_a_library_that_audits_all_calls_is_named"),
        ("memory in the place of a device", "V5", "test_memory_in_the_place_of_a_device_is_named"),
        ("direct reads that come from memory (data=journal)", "V1, V6, V27",
         "test_direct_reads_that_come_from_memory_are_named"),
        ("library that takes O_DIRECT away", "V4",
         "test_a_library_that_takes_o_direct_away_is_named"),
        ("buffered reads of what was never written back", "V1",
         "test_reads_of_pages_that_were_never_written_back_are_named"),
        ("run stopped for a tenth of its window", "V25",
         "test_a_run_that_was_stopped_for_a_tenth_of_its_window_is_named"),
        ("open loop that storage cannot keep", "V12",
         "test_an_open_loop_that_storage_cannot_keep_is_named"),
        ("rate that waiting users do not ask", "V15",
         "test_a_rate_that_waiting_users_do_not_ask_is_named"),
        ("next to no data", "V30",
         "test_next_to_no_data_is_no_result_unless_a_test_declares_itself"),
    )),
    *(Way(what, rules, f"{_MEANWHILE}::{name}", Origin.REVIEW) for what, rules, name in (
        ("interpreter whose clock is replaced", "V21",
         "test_an_interpreter_whose_clock_is_replaced_is_named"),
        ("overlay in the place of a device", "V5", "test_an_overlay_is_named"),
    )),
    *(Way(what, rules, f"{_VERIFY}::{name}", Origin.REVIEW) for what, rules, name in (
        ("result whose window was quartered, resealed", "verify",
         "test_a_window_that_was_quartered_holds_more_time_than_there_is"),
        ("number that was forged and resealed", "verify",
         "test_a_forged_number_is_told_though_the_hashes_fit"),
        ("any value of a result changed", "verify", "test_any_value_that_is_changed_is_noticed"),
        ("records that were changed", "verify", "test_records_that_were_changed_are_named"),
    )),
    *(Way(what, rules, f"{_PASSPORT}::{name}", Origin.SPECIFICATION) for what, rules, name in (
        ("others on all cores", "V13", "test_others_who_use_all_cores_are_named"),
        ("run that measures the client", "V13", "test_a_run_that_measures_the_client_is_named"),
        ("harness that is late", "V25", "test_a_harness_that_is_late_is_named"),
        ("schedule that is not kept", "V15", "test_a_schedule_that_is_not_kept_is_named"),
        ("I/O limit of a cgroup", "V24", "test_a_limit_on_the_disk_is_named"),
        ("CPU limit that stopped the run", "V24",
         "test_a_limit_of_the_cpu_that_stopped_the_run_is_named"),
        ("eatmydata: fsync that does nothing", "V4", "test_eatmydata_is_named"),
        ("payload that a drive could reduce", "V2",
         "test_a_payload_that_a_drive_could_reduce_is_named"),
        ("file system that only seems to do direct I/O", "V3, V27",
         "test_a_file_system_that_only_seems_to_do_direct_io_is_named"),
        ("writes that are acknowledged and never done", "V6, V19",
         "test_writes_that_are_acknowledged_and_never_done_are_named"),
        ("I/O that no result shows", "V6", "test_io_that_no_result_shows_is_named"),
        ("interrupted run", "V12", "test_an_interrupted_run_is_named"),
        ("window in which nothing completed", "V12",
         "test_a_window_in_which_nothing_completed_is_named"),
        ("operation that failed", "V12", "test_an_operation_that_failed_is_named"),
        ("records that did not fit", "V12", "test_records_that_did_not_fit_are_named"),
        ("run that never touches storage", "V18", "test_a_run_that_never_touches_storage_is_named"),
        ("bit that flipped on the disk", "V22", "test_a_bit_that_flipped_on_the_disk_is_named"),
        ("nothing verified", "V22", "test_a_run_that_verifies_nothing_is_named"),
        ("virtual time", "V26", "test_virtual_time_measures_nothing"),
    )),
    *(Way(what, rules, f"{_STALLS}::{name}", Origin.SPECIFICATION) for what, rules, name in (
        ("device that hangs to the end of the window", "V29",
         "test_a_device_that_hangs_to_the_end_of_the_window_is_suspect"),
        ("two seconds without an answer in the middle", "V29",
         "test_two_seconds_without_an_answer_in_the_middle_of_a_window_are_suspect"),
    )),
    *(Way(what, rules, f"{_VERIFY}::{name}", Origin.SPECIFICATION) for what, rules, name in (
        ("all numbers made to fit, against the records", "verify",
         "test_numbers_that_were_all_made_to_fit_are_told_by_the_records"),
    )),
    *(Way(what, rules, f"{_GUEST}::{name}", Origin.SPECIFICATION) for what, rules, name in (
        ("clock that is set while the run goes on", "V21",
         "test_a_clock_that_is_set_during_a_run_is_named"),
        ("memory limit of a cgroup", "V24", "test_a_memory_limit_that_makes_a_run_wait_is_named"),
    )),
    *(Way(what, rules, f"{_GUEST}::{name}", Origin.OWN) for what, rules, name in (
        ("kernel that gives I/O by a cost model (io.cost)", "V24",
         "test_a_drive_that_gives_by_the_cost_of_io_is_named"),
        ("drive that loses writes, and nothing is read", "V22",
         "test_a_drive_that_loses_writes_is_named_though_nothing_is_read"),
    )),
    Way("preconditioning that decays without end", "V14", "tests/unit/test_steady.py",
        Origin.SPECIFICATION),
    *(Way(what, rules, f"{_STACK}::{name}", Origin.OWN) for what, rules, name in (
        ("one drive of two in memory", "V27", "test_one_drive_in_memory_among_two_is_named"),
        ("FUSE below a loop device", "V28",
         "test_a_process_below_the_loop_device_is_named_and_nothing_else"),
        ("page cache above an end that cannot be seen", "V27, V28",
         "test_a_page_cache_above_an_end_that_cannot_be_seen_is_named_too"),
        ("file system of a process that keeps all in memory and acknowledges fsync", "V5",
         "test_a_file_system_that_keeps_all_in_memory_and_acknowledges_fsync_is_named"),
        ("no barriers below the file of a loop device", "V31",
         "test_a_mount_without_barriers_below_the_file_of_a_loop_device_is_named"),
    )),
    *(Way(what, rules, f"{_PASSPORT}::{name}", Origin.OWN) for what, rules, name in (
        ("cache files read by somebody else too", "V1",
         "test_somebody_who_reads_the_cache_files_too_is_named"),
        ("faked posix_fadvise", "V4, V1",
         "test_a_faked_posix_fadvise_is_named_and_so_is_what_it_does"),
        ("LD_AUDIT from shared memory, its variable hidden", "V4",
         "test_a_library_that_audits_from_shared_memory_and_hides_the_variable_is_named"),
        ("other data in the place of what was written", "V22",
         "test_other_data_in_the_place_of_what_was_written_is_named_though_no_load_verifies_it"),
        ("seccomp filter that answers fsync", "V31",
         "test_an_fsync_that_a_filter_answers_is_named"),
    )),
    *(Way(what, rules, f"{_MEANWHILE}::{name}", Origin.OWN) for what, rules, name in (
        ("I/O limit that is lifted before the run ends", "V24",
         "test_an_io_limit_that_is_gone_before_the_run_ends_is_named"),
        ("barriers that are off for a part of the run", "V31",
         "test_barriers_that_are_off_for_a_part_of_the_run_are_named"),
        ("direct I/O of a loop device, off for a part", "V27",
         "test_direct_io_of_a_loop_device_that_is_off_for_a_part_of_the_run_is_named"),
        ("device that stops counting in the run", "V19, V27",
         "test_a_device_that_stops_counting_in_the_run_is_named"),
        ("counters of a container for those of the machine", "V5",
         "test_counters_of_the_machine_that_are_not_the_kernels_are_named"),
        ("trim between the fill and the measurement", "V14",
         "test_a_trim_between_the_fill_and_the_end_is_named"),
        ("CPU limit of another cgroup, for a while", "V24",
         "test_a_cpu_limit_of_another_cgroup_that_the_run_was_moved_to_is_named"),
        ("device whose speed changes in the window", "V14",
         "test_a_device_whose_speed_changes_in_the_window_is_named"),
        ("neighbour of many small requests", "V23",
         "test_a_neighbour_of_many_small_requests_is_named"),
        ("memory mounted over the cache directory", "V28",
         "test_memory_that_is_mounted_over_the_cache_directory_is_named"),
        ("memory mounted over a quarter of the objects", "V6, V1",
         "test_memory_that_is_mounted_over_the_objects_is_named"),
        ("holes that others punch into the objects", "V22, V12",
         "test_holes_that_others_punch_into_the_objects_are_named"),
        ("interpreter whose fsync is replaced", "V4",
         "test_an_interpreter_whose_fsync_is_replaced_is_named"),
        ("tracer that answers fsync", "V4", "test_a_tracer_that_answers_fsync_is_named"),
        ("tracer that comes and goes", "V4", "test_a_tracer_that_comes_and_goes_is_named"),
        ("run stopped for moments again and again", "V25",
         "test_a_run_that_is_stopped_for_moments_again_and_again_is_named"),
    )),
    *(Way(what, rules, f"{_RANKS}::{name}", Origin.OWN) for what, rules, name in (
        ("one rank's result merged twice; of another host, of another job", "R1",
         "test_a_rank_without_a_whole_result_of_its_own_makes_it_invalid"),
        ("one run under the numbers of two ranks", "R8",
         "test_the_same_run_twice_under_another_number_is_found_by_its_seed"),
        ("a rank's result of an hour ago", "R3", "test_a_result_of_another_time_is_named"),
    )),
    *(Way(what, rules, f"{_TRIALS}::{name}", Origin.OWN) for what, rules, name in (
        ("trials of which one was left out", "T1",
         "test_trials_of_which_one_was_left_out_are_told_by_their_seeds"),
    )),
    *(Way(what, rules, f"{_SERIES}::{name}", Origin.OWN) for what, rules, name in (
        ("the same, its verdict forged and resealed", "verify",
         "test_a_series_whose_worst_trial_was_left_out_is_named_whatever_was_made_of_it"),
    )),
    *(Way(what, rules, f"{_TREE}::{name}", Origin.OWN) for what, rules, name in (
        ("best trial of an MLPerf sequence copied over the others, resealed", "duplicate",
         "test_a_trial_that_is_copied_over_another_is_told_by_its_times"),
    )),
    *(Way(what, "verify", test, Origin.OWN) for what, test in (
        ("interrupted run called finished, all made anew and resealed", (f"{_VERIFY}::"
         "test_a_run_that_was_interrupted_cannot_be_made_a_finished_one")),
        ("answer or verdict of a search changed, a probe left out, resealed",
         ("tests/integration/test_capacity.py::"
         "test_an_answer_that_does_not_follow_from_its_probes_is_told_though_the_hashes_fit")),
        ("cells of a sweep changed and resealed", ("tests/integration/test_sweep.py::"
         "test_numbers_of_a_sweep_that_do_not_follow_from_its_runs_are_told_though_the_hashes_fit")),
    )),
    *(Way(what, rules, f"{_FORMS}::{name}", Origin.REVIEW) for what, rules, name in (
        ("threshold that was moved", "threshold",
         "test_a_threshold_that_was_moved_is_named_beside_the_verdict_in_every_form"),
    )),
]  # fmt: skip


def tried(ways: Sequence[Way]) -> list[tuple[Way, str]]:
    """Return what became of each way: named, NOT NAMED, or not tried. The tests of one file run in
    one process."""
    files = dict.fromkeys(way.test.partition("::")[0] for way in ways)
    outcomes = {file: _outcomes(file, ways) for file in files}
    return [(way, outcomes[way.test.partition("::")[0]][way]) for way in ways]


def _outcomes(file: str, ways: Sequence[Way]) -> dict[Way, str]:
    mine = [way for way in ways if way.test.partition("::")[0] == file]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "nightly or not nightly",
             f"--junitxml={report.name}", *dict.fromkeys(way.test for way in mine)],
            cwd=HERE, capture_output=True, check=False,
        )  # fmt: skip
        cases = list(ElementTree.parse(report.name).iter("testcase"))
    found = {}
    for way in mine:
        name = way.test.partition("::")[2]
        found[way] = _outcome([c for c in cases if not name or _function(c) == name])
        print(f"{found[way]:10} {way.rules:12} {way.what}", flush=True)
    return found


def _function(case: ElementTree.Element) -> str:
    return case.get("name", "").partition("[")[0]


def _outcome(cases: Sequence[ElementTree.Element]) -> str:
    """Of a test with all its parameters."""
    ends = {child.tag for case in cases for child in case}
    if not cases or ends & {"failure", "error"}:
        return "NOT NAMED"
    return "not tried" if "skipped" in ends else "named"


_ABOUT = """\
Each is really done by a test, and what the rules say is looked at. `named`: the run is not VALID,
or `verify` does not let the result pass, by the rules that must say so; a threshold that was moved
stands beside the verdict. Rules of runs (V): [the passport](passport.md); of several ranks (R):
[ranks](ranks.md#rules); of trials (T): [compare two drives](../how-to/compare-two-drives.md).
What is tried is what can be done to a machine that runs the program; who writes the result anew
is met by a [signature](../how-to/read-a-result.md#is-it-as-its-run-left-it) alone."""


def page(rows: Sequence[tuple[Way, str]]) -> str:
    return "\n".join([*_page(rows), ""])


def _page(rows: Sequence[tuple[Way, str]]) -> Iterator[str]:
    yield "# Ways to a false number"
    yield ""
    yield from _ABOUT.splitlines()
    yield f"Last tried on {time.strftime('%Y-%m-%d')}, Linux {platform.release()}, by"
    yield "`python benchmarks/detection.py --write` (as root, on an idle machine)."
    yield ""
    yield "| origin | ways | named | not tried here | not named |"
    yield "|---|---|---|---|---|"
    for origin in Origin:
        counts = Counter(outcome for way, outcome in rows if way.origin is origin)
        numbers = [counts.total(), *(counts[word] for word in ("named", "not tried", "NOT NAMED"))]
        yield f"| {origin} | {' | '.join(map(str, numbers))} |"
    for origin in Origin:
        yield ""
        yield f"## {str(origin)[0].upper()}{str(origin)[1:]}"
        yield ""
        yield "| what is done | named by | outcome | test |"
        yield "|---|---|---|---|"
        for way, outcome in rows:
            if way.origin is origin:
                name = way.test.rpartition("::")[2]
                yield f"| {way.what} | {way.rules} | {outcome} | `{name}` |"


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
