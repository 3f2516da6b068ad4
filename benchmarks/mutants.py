"""Faults put into the program one at a time: do the tests find them?

    python benchmarks/mutants.py [--only TEXT]...

Each mutant changes one place of a copy of the source and runs the tests that are to find it. It is
killed if they fail, and the first that did is printed behind it. Exits with 1 where one lives, or
where its place is no longer there: whoever moves that code moves the mutant with it, so that a
fault that was found stays one that is found.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("kv_cache", "tests", "configs", "datasets", "docs", "benchmarks")
_FAILED = re.compile("(FAILED|ERROR) ")
UNIT, INTEGRATION = "tests/unit/test_", "tests/integration/test_"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`before`, which is in the file at least once, becomes `after` at its first place."""

    what: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "what could not be read is written all the same",
        "kv_cache/bench/many.py",
        "if one and not one.failed]",
        "if one]",
        (f"{UNIT}many.py", f"{UNIT}transfer.py"),
    ),
    Mutant(
        "of moves, one of which failed, the next is written from its place",
        "kv_cache/bench/many.py",
        "buffer.address, 0, apart, slots=moves.read",
        "buffer.address, 0, apart",
        (f"{UNIT}many.py", f"{UNIT}transfer.py"),
    ),
    Mutant(
        "moves count as new data",
        "kv_cache/metrics/recorder.py",
        "new=isinstance(done.ops[0], Write)",
        "new=side.kind is OpKind.WRITE",
        (f"{UNIT}many.py",),
    ),
    Mutant(
        "the written side of moves is not recorded",
        "kv_cache/metrics/recorder.py",
        "for side in done.sides:",
        "for side in done.sides[:1]:",
        (f"{UNIT}many.py",),
    ),
    Mutant(
        "moves that are being written have ended",
        "kv_cache/bench/many.py",
        "return () if written is None else (read, written)",
        "return (read, written) if written else (read,)",
        (f"{UNIT}many.py",),
    ),
    Mutant(
        "the host's time of a move counts twice",
        "kv_cache/bench/many.py",
        "total = device  # what lies",
        "total = most  # what lies",
        (f"{UNIT}many.py", f"{UNIT}transfer.py"),
    ),
    Mutant(
        "the mean latency of the reference is the median",
        "kv_cache/result/reference.py",
        '"avg_latency_ms": end_to_end["mean"]',
        '"avg_latency_ms": end_to_end["p50"]',
        (f"{UNIT}reference.py",),
    ),
    Mutant(
        "the reference's storage throughput is in MiB/s",
        "kv_cache/result/reference.py",
        '"storage_throughput_mbps": moved / 1e6',
        '"storage_throughput_mbps": moved / 2**20',
        (f"{UNIT}reference.py",),
    ),
    Mutant(
        "misses of conversations are counted as hits",
        "kv_cache/result/reference.py",
        '"multi_turn_cache_misses": reuse.history_looked_up - reuse.history_hits',
        '"multi_turn_cache_misses": reuse.history_hits',
        (f"{UNIT}reference.py",),
    ),
    Mutant(
        "a criterion that fails is no failure",
        "kv_cache/result/reference.py",
        '"PASS" if criteria and met == len(criteria) else "FAIL"',
        '"PASS" if criteria else "FAIL"',
        (f"{UNIT}judged.py",),
    ),
    Mutant(
        "a broken SLO is too few requests to say",
        "kv_cache/metrics/summary.py",
        '"met": True if low >= wanted else False if high < wanted else None',
        '"met": True if low >= wanted else None',
        (f"{UNIT}judged.py",),
    ),
    Mutant(
        "the hit ratio of ranks is over all blocks",
        "kv_cache/result/sections.py",
        '"reuse_hit_ratio": ("hits", "looked_up")',
        '"reuse_hit_ratio": ("hits", "blocks")',
        (f"{UNIT}merged_ranks.py",),
    ),
    Mutant(
        "a part of a result has no link in the chain",
        "kv_cache/result/chain.py",
        '        "config": section.pop("config", None),\n',
        '        "config": section.pop("config", None) and None,\n',
        (f"{UNIT}chain.py",),
    ),
    Mutant(
        "a file that was added after the run is fine",
        "kv_cache/result/chain.py",
        'yield Change(name, "is not in the chain: it was added after the run")',
        "continue",
        (f"{UNIT}chain.py", f"{INTEGRATION}verify.py"),
    ),
    Mutant(
        "histograms of several results are those of the first",
        "kv_cache/result/merge.py",
        "return [pooled(groups[each]) for each in sorted(groups)]",
        "return [groups[each][0] for each in sorted(groups)]",
        (f"{UNIT}merged_ranks.py", f"{UNIT}trials.py"),
    ),
    Mutant(
        "storage latencies in the summary have the wait for the host in them",
        "kv_cache/view/run.py",
        'side.device_ms if label == "storage" else side.total_ms',
        "side.total_ms",
        (f"{UNIT}judged.py",),
    ),
    Mutant(
        "a lower bound has no sign",
        "kv_cache/view/latency.py",
        'f"{AT_LEAST}{figures(value)}"',
        "figures(value)",
        (f"{UNIT}lower_bounds.py",),
    ),
    Mutant(
        "a comparison of trials does not pair them by their schedules",
        "kv_cache/result/comparison.py",
        "by_order = sorted(pairs, key=lambda pair: base.schedules.index(pair[0]))",
        "by_order = list(pairs)",
        (f"{UNIT}compare.py",),
    ),
    Mutant(
        "batches that depend on each other are as good as any",
        "kv_cache/result/comparison.py",
        "    if autocorrelation(known) > 2 / sqrt(len(known)):\n",
        "    if autocorrelation(known) > 2:\n",
        (f"{UNIT}compare.py", f"{INTEGRATION}compare.py"),
    ),
    Mutant(
        "a comparison takes samples without their inflation",
        "kv_cache/result/comparison.py",
        "logs, factor = [log(value) for value in known], series_inflation(known)",
        "logs, factor = [log(value) for value in known], 1.0",
        (f"{UNIT}judged.py",),
    ),
    Mutant(
        "trials have the mean where the geometric one is told",
        "kv_cache/result/metrics.py",
        "return geometric_mean(values) if self.most == inf else fmean(values)",
        "return fmean(values)",
        (f"{UNIT}trials.py", f"{INTEGRATION}trials.py"),
    ),
    Mutant(
        "the headline forgets what moved before the window",
        "kv_cache/metrics/pace.py",
        "batches.reach() + abs(self.after_bytes - self.before_bytes) / seconds",
        "batches.reach()",
        (f"{UNIT}pace.py",),
    ),
    Mutant(
        "a run ends at the first look that is narrow",
        "kv_cache/metrics/until.py",
        "self._narrow >= LOOKS_IN_A_ROW",
        "self._narrow >= 1",
        (f"{UNIT}until.py",),
    ),
    Mutant(
        "the interval takes batches for independent",
        "kv_cache/metrics/intervals.py",
        "return stdev(self.values) * sqrt((1 + r) / (1 - r) / count)",
        "return stdev(self.values) * sqrt(1 / count)",
        (f"{UNIT}intervals.py", f"{UNIT}until.py"),
    ),
    Mutant(
        "a change of level is claimed at any t",
        "kv_cache/metrics/change.py",
        "claimed = t >= (CLAIMED_T if batches.settled else _CLAIMED_T_UNSETTLED)",
        "claimed = t >= 1",
        (f"{UNIT}change.py",),
    ),
    Mutant(
        "compare judges its headline among all others",
        "kv_cache/result/comparison.py",
        "sure = _certain(families[True]) | _certain(families[False])",
        "sure = _certain(families[True] + families[False])",
        (f"{UNIT}compare.py",),
    ),
    Mutant(
        "a percentile is given of too few values",
        "kv_cache/metrics/histogram.py",
        "def supported(",
        "def supported(*_: object) -> bool:\n    return True\n\n\ndef _unused(",
        (f"{UNIT}lower_bounds.py", f"{UNIT}recorder.py", "tests/property/test_histogram.py"),
    ),
    Mutant(
        "a result that found no other place is not given to stdout",
        "kv_cache/cli/printing.py",
        'return {**short, "document": result.document}',
        "return short",
        (f"{INTEGRATION}output_lost.py",),
    ),
    Mutant(
        "a result replaces a file of another name's owner",
        "kv_cache/files/keep.py",
        "wanted if number == 1 else wanted.with_name",
        "wanted if number else wanted.with_name",
        (f"{INTEGRATION}output_lost.py",),
    ),
    Mutant(
        "a terminal that closes leaves the child to run",
        "kv_cache/cli/supervisor.py",
        "of_group = came.si_code == _SI_KERNEL and came.si_signo != HANGUP",
        "of_group = came.si_code == _SI_KERNEL",
        (f"{INTEGRATION}interrupts.py",),
    ),
    Mutant(
        "a device that did not answer is a clean end",
        "kv_cache/cli/supervisor.py",
        "return Exit.NO_ANSWER",
        "return Exit.DONE",
        (f"{INTEGRATION}no_answer.py",),
    ),
    Mutant(
        "~ is not the home",
        "kv_cache/config/schema.py",
        "return _at_home(value, at) if rule.is_path else value",
        "return value",
        (f"{INTEGRATION}given_paths.py",),
    ),
    Mutant(
        "a temporary directory in RAM is taken",
        "kv_cache/config/storage_targets.py",
        'if "TMPDIR" in os.environ or not _in_memory(usual)',
        'if "TMPDIR" in os.environ or _in_memory(usual)',
        (f"{UNIT}places.py",),
    ),
    Mutant(
        "an option of a feature that is off says nothing",
        "kv_cache/config/unread.py",
        "        if not any(holds(each, root, facts) for each in alternatives):\n",
        "        if False and any(holds(each, root, facts) for each in alternatives):\n",
        (f"{UNIT}config.py", f"{UNIT}unread.py"),
    ),
    Mutant(
        "capacity's table has read alone",
        "kv_cache/view/capacity.py",
        "sides = (probe.storage_read_bytes_per_s, probe.storage_write_bytes_per_s)",
        "sides = (probe.storage_read_bytes_per_s,)",
        (f"{INTEGRATION}capacity.py", f"{UNIT}capacity.py"),
    ),
    Mutant(
        "a picture of throughput is ten times too high",
        "kv_cache/view/picture/shown.py",
        "    shown = column.shown(value)\n",
        "    shown = (column.shown(value) or 0.0) * 10\n",
        (f"{UNIT}plot.py", f"{INTEGRATION}plot.py", f"{INTEGRATION}report_numbers.py"),
    ),
    Mutant(
        "numbers have three figures",
        "kv_cache/core/format.py",
        "{value:.4g}'):.6f",
        "{value:.3g}'):.6f",
        (f"{UNIT}format.py",),
    ),
    Mutant(
        "text in a page is not escaped",
        "kv_cache/view/page/safe_text.py",
        "escape(",
        "str(",
        (f"{UNIT}html_report.py",),
    ),
    Mutant(
        "a link that is too fast for its bus is fine",
        "kv_cache/metrics/rules/page_cache.py",
        "if rate is not None and rate > link * (1 + t.link_tolerance):",
        "if rate is not None and rate > 100 * link * (1 + t.link_tolerance):",
        (f"{UNIT}passport.py",),
    ),
    Mutant(
        "a submission without its third option is complete",
        "kv_cache/mlperf/rules.py",
        'yield invalid("was not run; all three options are wanted", f"option_{option}")',
        "continue",
        (f"{INTEGRATION}submission_tree.py", f"{UNIT}submission.py"),
    ),
    Mutant(
        "a request that is tried again is counted twice",
        "kv_cache/tiers/objects/client.py",
        '            self._count("retries")\n',
        '            self._count("retries")\n            self._count(kind)\n',
        (
            f"{INTEGRATION}s3.py::test_a_request_that_is_tried_again_is_counted_once_each_time_it_is_sent",
        ),
    ),
    Mutant(
        "a process with the number of a dead run is that run",
        "kv_cache/bench/owner.py",
        'return ticks is not None and ticks == record.get("pid_start_ticks")',
        "return ticks is not None",
        (f"{INTEGRATION}hosts.py",),
    ),
    Mutant(
        "a client of the metrics keeps its place for ever",
        "kv_cache/bench/endpoint.py",
        "self._clients.pop(request, None)",
        "pass",
        (f"{UNIT}endpoint.py",),
    ),
    Mutant(
        "a copy takes its bytes and no whole pages",
        "kv_cache/core/block.py",
        "return objects * round_up(-(-nbytes // objects), PAGE_BYTES)",
        "return nbytes",
        ("tests/property/test_cache_machine.py",),
    ),
    Mutant(
        "free space is joined over a border with what follows",
        "kv_cache/tiers/extents.py",
        "if end not in self._borders and at < len",
        "if at < len",
        (f"{UNIT}extents.py",),
    ),
    Mutant(
        "free space is joined over a border with what comes before",
        "kv_cache/tiers/extents.py",
        "if at and start not in self._borders and before",
        "if at and before",
        (f"{UNIT}extents.py",),
    ),
    Mutant(
        "space of one size stays apart from what another is taken of",
        "kv_cache/tiers/extents.py",
        "                self._join_the_spare()",
        "                pass",
        (f"{UNIT}extents.py",),
    ),
    Mutant(
        "a sigint within an import is an exception",
        "kv_cache/cli/early_signal.py",
        'if frame.f_code.co_filename.startswith("<frozen importlib"):',
        "if False:",
        (f"{INTEGRATION}interrupts.py",),
    ),
    Mutant(
        "rounds of seconds prove a steady state",
        "kv_cache/metrics/steady.py",
        "if rounds.shortest_s is not None and rounds.shortest_s < limits.least_s",
        "if False and rounds.shortest_s is not None and rounds.shortest_s < limits.least_s",
        (f"{UNIT}steady.py",),
    ),
    Mutant(
        "a slope that goes on is steady",
        "kv_cache/metrics/steady.py",
        "    if change > limits.most_change + _ROUNDING:\n",
        "    if False:\n",
        (f"{UNIT}steady.py",),
    ),
)


def fate(mutant: Mutant, copy: Path) -> tuple[str, str]:
    """`killed`, `lives`, or `gone` where its place is no longer there; and the test that killed."""
    path = copy / mutant.path
    whole = path.read_text() if path.exists() else ""
    if mutant.before not in whole:
        return "gone", ""
    path.write_text(whole.replace(mutant.before, mutant.after, 1))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests],
            cwd=copy, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        path.write_text(whole)
    killers = [
        line.split(" - ")[0].split(" ", 1)[1]
        for line in done.stdout.splitlines()
        if _FAILED.match(line)
    ]
    word = {0: "lives", 1: "killed"}.get(done.returncode, f"pytest exits with {done.returncode}")
    return word, ", ".join(killers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only", action="append", help="mutants with this in their description or path"
    )
    options = parser.parse_args()
    fates: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kv-cache-mutants-") as scratch:
        copy = Path(scratch)
        _copy(copy, COPIED)
        for mutant in MUTANTS:
            if any(only in f"{mutant.what} {mutant.path}" for only in options.only or [""]):
                word, killer = fate(mutant, copy)
                fates.append(word)
                behind = f" <- {killer}" if killer else ""
                print(f"{word:<8}{mutant.path}: {mutant.what}{behind}", flush=True)
    print(f"{fates.count('killed')} of {len(fates)} are killed")
    sys.exit(0 if set(fates) == {"killed"} else 1)


def _copy(copy: Path, folders: Sequence[str]) -> None:
    for name in folders:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)


if __name__ == "__main__":
    main()
