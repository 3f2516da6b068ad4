"""A result computed again from its own parts, whatever its hashes say.

Much of a result can be derived from the rest of it: the verdict from the evidence, bandwidths from
the ledger, percentiles from histograms, the reference's keys from our section; and where the run's
records are there, the ledger and the histograms from them. Whoever changes one number has to change
all that follow from it. Each deviation is one sentence: where, what stands there, what comes out.

It must never fail: the document is anybody's. Values are taken through `Node` only, which turns a
missing or misshapen one into a deviation.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from typing import Any

import orjson

from kv_cache import __version__
from kv_cache.config.load import read_yaml
from kv_cache.config.passport import PassportConfig
from kv_cache.config.schema import from_mapping, show
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.units import GIB, NS_PER_S
from kv_cache.metrics.evidence import Thresholds
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.pace import KINDS
from kv_cache.metrics.passport import Verdict, judge
from kv_cache.metrics.recorder import Edges
from kv_cache.metrics.steady import Sample, trends
from kv_cache.metrics.summary import (
    LATENCIES,
    call_ms,
    kept_promises,
    latency_ms,
    per_second,
    ratio,
    reference_ms,
    size_numbers,
)
from kv_cache.metrics.summary import PERCENTILES as NAMED
from kv_cache.report.headline import headline_again
from kv_cache.report.iotrace import figures_left
from kv_cache.report.mlperf import LATENCIES as KEYS
from kv_cache.report.mlperf import unsupported
from kv_cache.report.model import shape_of
from kv_cache.report.node import MisshapenError, Node
from kv_cache.report.prediction import NAMES, PERCENTILES, error
from kv_cache.tiers.payload import MISMATCH

SECTION = "kv_cache"
RECORDS = ("requests.jsonl", "transfers.jsonl")
_MEASURE = Phase.MEASURE.value
_LARGEST_SIDE_FILE = 64 << 20
_LONGEST_LINE = 64 << 20
_MOST_DIFFERENCES = 5
_MOST_FLOWS = 1000  # phases x tiers x operations x causes x engines
_ROOT = "the result"


# --- numbers compared ------------------------------------------------------------------------


def _same(stored: Any, found: Any) -> bool:
    """Whole numbers to the last byte; others but for how they were rounded."""
    if type(stored) is int and type(found) is int:
        return stored == found
    numbers = [v for v in (stored, found) if isinstance(v, int | float) and type(v) is not bool]
    if len(numbers) == 2:
        return stored == found or isclose(stored, found, rel_tol=1e-9, abs_tol=1e-12)
    return type(stored) is type(found) and bool(stored == found)


def _compare(node: Node, found: Any, says: str) -> Iterator[str]:
    """`says` completes `... says 5, but <says> 7`."""
    if not _same(node.value, found):
        yield f"{node.path} says {show(node.value)}, but {says} {show(found)}"


# --- the ledger, added up --------------------------------------------------------------------


@dataclass(slots=True)
class _Sums:
    """All rows of one tier and operation: in the window, and of the whole run."""

    operations: int = 0
    bytes: int = 0
    run_bytes: int = 0
    calls: int = 0
    sizes: Histogram = field(default_factory=Histogram)
    total: Histogram = field(default_factory=Histogram)
    device: Histogram = field(default_factory=Histogram)


def _flows(own: Node) -> list[Node]:
    rows = own["operations"].rows()
    if len(rows) > _MOST_FLOWS:
        raise MisshapenError(f"kv_cache.operations has {len(rows)} rows, more than there can be")
    return rows


def _ledger(own: Node) -> dict[tuple[str, str], _Sums]:
    sums: dict[tuple[str, str], _Sums] = {}
    labels = {name for name, _ in own["tiers"].items()}
    for row in _flows(own):
        tier, operation = row["tier"].text(), row["operation"].text()
        if tier not in labels:
            raise MisshapenError(f"{row.path}.tier is {show(tier)}, which kv_cache.tiers has not")
        mine = sums.setdefault((tier, operation), _Sums())
        mine.run_bytes += row["bytes"].whole()
        if row["phase"].text() == _MEASURE:
            mine.operations += row["operations"].whole()
            mine.bytes += row["bytes"].whole()
            mine.calls += row["system_calls"].whole()
            mine.total.merge(row["histogram_total"].histogram())
            mine.device.merge(row["histogram_device"].histogram())
            mine.sizes.merge(row["histogram_bytes"].histogram())
    return sums


def _sum_of(sums: Mapping[tuple[str, str], _Sums], tier: str, operation: str) -> _Sums:
    return sums.get((tier, operation)) or _Sums()


# --- the checks ------------------------------------------------------------------------------


def _verdict(root: Node) -> Iterator[str]:
    own = root[SECTION]
    passport = own["passport"]
    evidence = passport["evidence"]
    if not isinstance(evidence.value, Mapping):
        raise MisshapenError(f"{evidence.path} is {show(evidence.value)}, not a mapping")
    again = judge(evidence.value, _thresholds(own)).to_json()
    yield from _compare(passport["verdict"], again["verdict"], "the evidence gives")
    if own["program_version"].value != __version__:
        return  # another version may have other rules and other words
    stored = {row["rule"].text(): row for row in passport["rules"].rows()}
    for rule in again["rules"]:
        row = stored.pop(rule["rule"], None)
        if row is None:
            yield f"{passport.path}.rules has no rule {rule['rule']}"
            continue
        for name in ("name", "status", "says"):
            yield from _compare(row[name], str(rule[name]), "the evidence gives")
    for row in stored.values():
        yield f"{row.path} is of a rule that there is not"
    for name in ("reasons", "changed_thresholds"):
        if passport[name].value != orjson.loads(orjson.dumps(again[name])):
            yield f"{passport.path}.{name} does not follow from the rules"


def _thresholds(own: Node) -> Thresholds:
    """The thresholds that the result was judged by."""
    section = own["config"]["passport"]
    try:
        return from_mapping(PassportConfig, section.value, section.path).thresholds()
    except ConfigError as error:
        raise MisshapenError(str(error)) from None


def judged_again(document: Mapping[str, Any]) -> Verdict:
    """The verdict that the document's evidence gives, whatever verdict stands in it. Without
    readable thresholds the defaults hold, without evidence nothing is known."""
    own = Node(document, _ROOT)[SECTION]
    evidence = own.find("passport.evidence")
    known = evidence is not None and isinstance(evidence.value, Mapping)
    try:
        thresholds = _thresholds(own)
    except MisshapenError:
        thresholds = Thresholds()
    return judge(evidence.value if evidence is not None and known else {}, thresholds)


def _evidence(root: Node) -> Iterator[str]:
    """The evidence must be of this run: what else the result knows must stand there."""
    own = root[SECTION]
    evidence, books = own["passport"]["evidence"], own["requests"]
    failed = [row["count"].whole() for row in own["failed_operations"].rows()]
    expected = {
        "driver": own["driver"].value,
        "completeness.status": own["status"].value,
        "completeness.window_s": own["window_s"].value,
        "completeness.submitted": books["submitted"].value,
        "completeness.completed": books["completed_in_window"].value,
        "completeness.failed_requests": books["failed"].whole()
        + books["unfinished_failed_in_drain"].whole(),
        "completeness.rejected": books["rejected"].value,
        "completeness.unfinished": books["unfinished"].value,
        "completeness.failed_operations": sum(failed),
        "verification.mode": own["verification"]["mode"].value,
        "verification.objects": own["verification"]["objects"].value,
        "verification.bytes": own["verification"]["bytes"].value,
        "verification.errors": sum(
            row["count"].whole()
            for row in own["failed_operations"].rows()
            if row["reason"].value == MISMATCH
        ),
        "sample.mode": own["config"]["run"]["mode"].value,
        "sample.ranks": own["rank"]["ranks"].value,
        "engines.wanted": own["config"]["io"]["engine"].value,
        "engines.write_wanted": own["config"]["io"]["write_engine"].value,
        "engines.fsync": own["semantics"]["fsync"].value,
    }
    sums = _ledger(own)
    cpu_ns = own.find("kernel_counters.window.process_cpu_ns")
    if cpu_ns is not None:
        expected["client.cpu_s"] = cpu_ns.whole() / NS_PER_S
    for kind, name in (("read", "storage_read_bytes"), ("write", "storage_written_bytes")):
        mine = _sum_of(sums, "storage", kind)
        expected[f"amplification.{name}"] = mine.run_bytes
        expected[f"sample.{kind}_operations"] = mine.operations
        rate = per_second(mine.bytes, own["window_s"].number())
        expected[f"link.{kind}_bytes_per_second"] = rate
        if evidence.find("gaps") is not None:
            steps = _steps(own, kind)
            expected[f"gaps.{kind}_call_ms"] = call_ms(mine.device, mine.calls, steps)
    yield from _engine_rows(own, evidence)
    for kind, calls in (("read", "rchar"), ("write", "wchar")):
        claimed = _sum_of(sums, "storage", kind).run_bytes
        expected[f"ledger.{kind}.claimed_bytes"] = claimed
        for name, counter in (
            ("process", f"process_{kind}_bytes"),
            ("device", f"device_{kind}_bytes"),
            ("foot", f"foot_{kind}_bytes"),
            ("calls", calls),
            ("network", f"network_{'rx' if kind == 'read' else 'tx'}_bytes"),
        ):
            counted = own.find(f"kernel_counters.run.{counter}")
            if name == "network" and evidence.find(f"ledger.{kind}.network_bytes") is None:
                continue  # only of object stores
            if counted is not None:
                expected[f"ledger.{kind}.{name}_bytes"] = counted.value
    for path, value in expected.items():
        node = evidence.find(path) or Node(None, f"{evidence.path}.{path}")
        yield from _compare(node, value, "the rest of the result gives")


def _steps(own: Node, kind: str) -> list[Histogram]:
    """Of storage, in the window."""
    wanted = (_MEASURE, "storage", kind)
    return [
        row["histogram"].histogram()
        for row in own["metadata"].rows()
        if tuple(row[name].value for name in ("phase", "tier", "operation")) == wanted
    ]


def _stack(root: Node) -> Iterator[str]:
    """What lies below the directories stands in the environment too, by directory."""
    told = root[SECTION].find("passport.evidence.stack")
    drives = root[SECTION]["environment"].find("drives")
    below = [] if drives is None else [row.find("stack") for row in drives.rows()]
    if told is None or None in below:
        return  # virtual time; an object store
    for name in ("feet", "not_compared", "no_barrier", "uncounted"):
        listed = [row.value for stack in below if stack is not None for row in stack[name].rows()]
        if told[name].value != [row for n, row in enumerate(listed) if row not in listed[:n]]:
            yield f"{told.path}.{name} is not what the environment says of the directories"


def _model(root: Node) -> Iterator[str]:
    """A token's bytes follow from the geometry, and are those that were asked for."""
    model, mixed = root[SECTION]["model"], root[SECTION]["model"].find("models")
    for row in [model] if mixed is None else [row for _, row in mixed.items()]:
        yield from _compare(
            row["bytes_per_token"], shape_of(row).bytes_per_token, "its geometry gives"
        )
    stated = root[SECTION]["config"].find("run.kv_bytes_per_token")
    if stated is not None:
        yield from _compare(model["bytes_per_token"], stated.value, "the configuration has")


def _steady(root: Node) -> Iterator[str]:
    """The trends follow from the measured windows, and the rounds that are judged are those that
    were run."""
    own = root[SECTION]
    steady = own["passport"]["evidence"]["steady"]
    rows = [row for row in own["series"]["windows"].rows() if row["phase"].value == _MEASURE]
    found = trends([_sample(row) for row in rows])
    for name, value in found.items():
        yield from _compare(steady["stationarity"][name], value, "the measured windows give")
    rounds = own.find("preconditioning.rounds")
    rates = [] if rounds is None else [r["bytes_per_second"].number() for r in rounds.rows()]
    yield from _compare(steady["rounds"], len(rates), "the preconditioning has")
    judged = steady.find("proof.values")
    if judged is not None:
        told = [value.number() for value in judged.rows()]
        if told != rates[-len(told) :]:
            yield f"{judged.path} are not the last rounds of the preconditioning"


def _sample(row: Node) -> Sample:
    sides = [row.find(f"tiers.storage.{kind}.bytes") for kind in ("read", "write")]
    return Sample(
        start_s=row["start_s"].number(),
        end_s=row["end_s"].number(),
        nbytes=sum(side.whole() for side in sides if side is not None),
        backlog=row["queued"].whole() + row["in_flight"].whole(),
        submitted=row["submitted"].whole(),
    )


def _engine_rows(own: Node, evidence: Node) -> Iterator[str]:
    """What moved the bytes of storage, by direction, is what the ledger says."""
    moved: Counter[tuple[str, str]] = Counter()
    for row in own["operations"].rows():
        if row["tier"].text() == "storage" and row["operation"].text() != "delete":
            moved[row["operation"].text(), row["engine"].text()] += row["bytes"].whole()
    rows = evidence["engines"]["rows"]
    told = {(r["operation"].text(), r["engine"].text()): r["bytes"].whole() for r in rows.rows()}
    if told != {key: nbytes for key, nbytes in moved.items() if nbytes}:
        yield f"{rows.path} does not follow from the operations"


def _window(root: Node) -> Iterator[str]:
    own = root[SECTION]
    start, end = own["phases_ns"]["measure_start"], own["phases_ns"]["measure_end"]
    length_ns = 0 if end.value is None else max(0, end.whole() - start.whole())
    yield from _compare(own["window_s"], length_ns / NS_PER_S, "its instants give")
    for name in ("run", "seed"):
        node = own["config"]["run"]["seed"] if name == "run" else root["seed"]
        yield from _compare(node, own["seed"].value, "kv_cache.seed is")


def _headline(root: Node) -> Iterator[str]:
    own, sums = root[SECTION], _ledger(root[SECTION])
    moved = {kind: _sum_of(sums, "storage", kind.value).bytes for kind in KINDS}
    for node, found, says in headline_again(own, moved):
        yield from _compare(node, found, says)


def _operations(root: Node) -> Iterator[str]:
    for row in _flows(root[SECTION]):
        for name in ("total", "device", "bytes"):
            histogram = row[f"histogram_{name}"].histogram()
            if name != "bytes":
                yield from _latencies(row[f"{name}_ms"], histogram)
            if histogram.count != row["operations"].whole():
                yield (
                    f"{row.path}.operations says {row['operations'].value}, but its histogram of "
                    f"{name} holds {histogram.count}"
                )


def _metadata(root: Node) -> Iterator[str]:
    for row in root[SECTION]["metadata"].rows():
        histogram = row["histogram"].histogram()
        yield from _latencies(row["ms"], histogram)
        yield from _compare(row["count"], histogram.count, "its histogram holds")


def _latencies(node: Node, histogram: Histogram) -> Iterator[str]:
    again = latency_ms(histogram)
    for name, value in again.items():
        yield from _compare(node[name], value, "the histogram gives")
    if "at_least" not in again and node.find("at_least") is not None:
        yield f"{node.path}.at_least is there, though nothing in flight was that old"


def _tiers(root: Node) -> Iterator[str]:
    own = root[SECTION]
    sums, seconds = _ledger(own), own["window_s"].number()
    for label, tier in own["tiers"].items():
        for kind in ("read", "write"):
            row, mine = tier[kind], _sum_of(sums, label, kind)
            for name, value in (
                ("operations", mine.operations),
                ("bytes", mine.bytes),
                ("bytes_per_second", per_second(mine.bytes, seconds)),
                ("operations_per_second", per_second(mine.operations, seconds)),
            ):
                yield from _compare(row[name], value, "the operations of the window give")
            yield from _latencies(row["total_ms"], mine.total)
            yield from _latencies(row["device_ms"], mine.device)
            for name, value in size_numbers(mine.sizes).items():
                yield from _compare(row["object_bytes"][name], value, "the objects' sizes give")


def _requests(root: Node) -> Iterator[str]:
    own = root[SECTION]
    books, measured = own["requests"], own["measured"]
    for whole, parts in (
        ("submitted", ("completed", "failed", "rejected", "unfinished")),
        ("completed", ("completed_in_warmup", "completed_in_window")),
        ("unfinished", ("unfinished_completed_in_drain", "unfinished_failed_in_drain",
                        "unfinished_abandoned")),
    ):  # fmt: skip
        total = sum(books[part].whole() for part in parts)
        yield from _compare(books[whole], total, f"{' + '.join(parts)} is")
    everything = measured["all"]
    yield from _compare(
        everything["completed"], books["completed_in_window"].value, "completed_in_window is"
    )
    for name in ("completed", "prompt_tokens", "output_tokens"):
        total = sum(measured[qos.value][name].whole() for qos in Qos)
        yield from _compare(everything[name], total, "the classes add up to")
    for name in ("all", *(qos.value for qos in Qos)):
        for latency in LATENCIES:
            histogram = measured[name][f"histogram_{latency}"].histogram()
            yield from _latencies(measured[name][f"{latency}_ms"], histogram)
    for qos in Qos:
        yield from _promises(measured[qos.value])


def _promises(row: Node) -> Iterator[str]:
    """Whether promises were kept follows from all that was answered."""
    promises, histogram = row["promises"], row["histogram_end_to_end"].histogram()
    targets = {name: node["target_ms"].number() for name, node in promises.items()}
    unknown = targets.keys() - NAMED.keys()
    if unknown:
        raise MisshapenError(f"{promises.path} has {show(min(unknown))}, which is no percentile")
    for name, again in kept_promises(histogram, targets).items():
        for part, value in again.items():
            yield from _compare(promises[name][part], value, "the histogram gives")


def _reference_keys(root: Node) -> Iterator[str]:
    own = root[SECTION]
    done, seconds = own["measured"]["all"], own["window_s"].number()
    sums, reuse = _ledger(own), own["reuse"]
    moved = sum(_sum_of(sums, "storage", kind).bytes for kind in ("read", "write"))
    hits, lookups = (
        reuse[one].whole() + reuse[two].whole()
        for one, two in (("hits", "decode_hits"), ("looked_up", "decode_looked_up"))
    )
    completed, tokens = done["completed"].whole(), done["output_tokens"].whole()
    end_to_end = reference_ms(done["histogram_end_to_end"].histogram())
    if own.find("config.output.io_trace_log") is not None:
        for name in figures_left(root.value):
            yield f"{name} is a figure, though the run only wrote a trace of its operations"
        return
    expected = {
        "requests_completed": completed,
        "total_requests": completed,
        "total_tokens_generated": tokens,
        "multi_turn_cache_hits": reuse["history_hits"].value,
        "multi_turn_cache_misses": reuse["history_looked_up"].whole()
        - reuse["history_hits"].whole(),
        "avg_latency_ms": end_to_end["mean"],
        "p99_latency_ms": end_to_end["p99"],
        "throughput_req_per_sec": per_second(completed, seconds),
        "storage_throughput_mbps": per_second(moved, seconds) / 1e6,
        "cache_hit_rate": ratio(hits, lookups),
    }
    for name, value in expected.items():
        yield from _compare(root[name], value, "section kv_cache gives")
    yield from _passed(root, own)
    if own["reference_keys_unsupported"].value != unsupported(own):
        yield "kv_cache.reference_keys_unsupported does not follow from the counts"
    if completed:
        yield from _summary(root["summary"], own, sums)
    elif "summary" in root.value:
        yield "summary is there, though section kv_cache says that nothing completed"


def _passed(root: Node, own: Node) -> Iterator[str]:
    """`overall_passed` may be false for more reasons than the result tells; true has few."""
    if root["overall_passed"].value is not True:
        return
    sound = (
        own["driver"].value == "real-io"
        and own["status"].value == "finished"
        and own["passport"]["verdict"].value != "invalid"
        and own["requests"]["failed"].value == 0
        and not own["failed_operations"].rows()
        and own["measured"]["all"]["completed"].whole() > 0
        and root["summary"]["cache_stats"]["storage_health"]["overall_status"].value == "PASS"
    )
    if not sound:
        yield "overall_passed says true, but the run or its criteria did not pass"


def _summary(summary: Node, own: Node, sums: Mapping[tuple[str, str], _Sums]) -> Iterator[str]:
    done, seconds = own["measured"]["all"], own["window_s"].number()
    completed, tokens = done["completed"].whole(), done["output_tokens"].whole()
    expected = {
        "total_requests": completed,
        "total_tokens": tokens,
        "elapsed_time": seconds,
        "avg_throughput_tokens_per_sec": per_second(tokens, seconds),
        "requests_per_second": per_second(completed, seconds),
    }
    for name, value in expected.items():
        yield from _compare(summary[name], value, "section kv_cache gives")
    for name, latency in KEYS.items():
        for key, value in reference_ms(done[f"histogram_{latency}"].histogram()).items():
            yield from _compare(summary[name][key], value, "the histogram gives")
    yield from _cache_stats(summary["cache_stats"], seconds, sums)


def _cache_stats(
    stats: Node, seconds: float, sums: Mapping[tuple[str, str], _Sums]
) -> Iterator[str]:
    totals = Counter[str]()
    for tier in ("gpu", "cpu", "storage"):
        for kind, past in (("write", "written"), ("read", "read")):
            mine = _sum_of(sums, tier, kind)
            totals[kind] += mine.bytes
            rate = per_second(mine.bytes, seconds) / GIB
            moved = stats[f"tier_{tier}_kv_bytes_{past}_gb"]
            yield from _compare(moved, mine.bytes / GIB, "the operations give")
            yield from _compare(stats[f"tier_{tier}_{kind}_bandwidth_gbps"], rate, "they give")
            yield from _percentiles(stats, f"{tier}_{kind}", mine.total)
            if tier == "storage":
                yield from _percentiles(stats, f"{tier}_{kind}_device", mine.device)
    for kind in ("read", "write"):
        operations = _sum_of(sums, "storage", kind).operations
        iops = stats[f"{kind}_iops"]
        yield from _compare(stats[f"total_{kind}_bytes"], totals[kind], "the operations give")
        yield from _compare(iops, per_second(operations, seconds), "the operations give")


def _percentiles(stats: Node, prefix: str, histogram: Histogram) -> Iterator[str]:
    if histogram.count:
        for name, value in reference_ms(histogram).items():
            if name == "mean":
                continue
            yield from _compare(stats[f"{prefix}_{name}_ms"], value, "the histograms give")


def _reconciliation(root: Node) -> Iterator[str]:
    own = root[SECTION]
    if own["reconciliation"].value is None:
        return
    sums = _ledger(own)
    for kind in ("read", "write"):
        row, claimed = own["reconciliation"][kind], _sum_of(sums, "storage", kind).run_bytes
        yield from _compare(row["claimed_bytes"], claimed, "the operations give")
        for name in ("process", "device", "network"):
            counted = row.find(f"{name}_bytes")
            if counted is None:
                continue
            share = None if counted.value is None else ratio(counted.number(), claimed)
            yield from _compare(row[f"{name}_to_claimed"], share, "its bytes give")


def _twin(root: Node) -> Iterator[str]:
    """What the twin was held against is what was measured, and its errors follow. The result of
    `predict` is the twin's own: there the prediction is what stands beside it."""
    own = root[SECTION]
    twin = own.find("twin")
    if twin is None:
        return
    stood, predicted = _quantities(own), twin["prediction"]
    measured = twin.find("measurement")
    if measured is None:
        for name, node in predicted.items():
            yield from _compare(node, stood.get(name), "the rest of the result gives")
        return
    for name, node in predicted.items():
        yield from _compare(measured[name], stood.get(name), "the rest of the result gives")
        both = (None if each.value is None else each.number() for each in (node, measured[name]))
        off, stored = error(*both), twin["error"][name]
        if off is None or stored.value is None:
            yield from _compare(stored, off, "prediction and measurement give")
            continue
        for part, value in off.items():
            yield from _compare(stored[part], value, "prediction and measurement give")


def _quantities(own: Node) -> dict[str, Any]:
    """Those of `report/prediction`, out of a document."""
    seconds, every, reuse = own["window_s"].number(), own["measured"]["all"], own["reuse"]
    completed = every["completed"].whole()
    found: dict[str, Any] = {
        "requests_per_s": completed / seconds if seconds else None,
        "block_hit_ratio": reuse["reuse_hit_ratio"].value if reuse["looked_up"].whole() else None,
        "token_hit_ratio": reuse["achieved_token_ratio"].value,
    }

    def times(name: str, row: Node) -> None:
        found.update({f"{name}_{p}_ms": row[p].value for p in PERCENTILES})

    for label, tier in own["tiers"].items():
        for kind, name in NAMES.items():
            row = tier[kind.value]
            found[f"{label}_{kind.value}_bytes_per_s"] = row["bytes_per_second"].value
            times(f"{label}_{name}_device", row["device_ms"])
            times(f"{label}_{name}", row["total_ms"])
    for name in ("ttft", "response"):
        times(name, every[f"{name}_ms"])
    return found


Check = Callable[[Node], Iterator[str]]

CHECKS: Mapping[str, Check] = {
    "the verdict follows from the evidence": _verdict,
    "the evidence is of this run": _evidence,
    "the stack is that of the environment": _stack,
    "the steady state follows from windows and rounds": _steady,
    "window and seed": _window,
    "a token's bytes follow from the model": _model,
    "the headline and its interval follow from batches": _headline,
    "latencies of operations follow from their histograms": _operations,
    "latencies of metadata follow from their histograms": _metadata,
    "bytes and latencies of tiers follow from the operations": _tiers,
    "requests add up": _requests,
    "the reference's keys follow from our section": _reference_keys,
    "reconciliation follows from the operations": _reconciliation,
    "what the twin was held against was measured": _twin,
}
"""What is computed again from a result alone."""


def recheck(document: Mapping[str, Any]) -> list[str]:
    """What in the document does not follow from the rest of it, one sentence each."""
    root = Node(document, _ROOT)
    told = (deviation for check in CHECKS.values() for deviation in _told(check(root)))
    return list(dict.fromkeys(told))  # several checks may miss the same value


def _told(deviations: Iterator[str]) -> Iterator[str]:
    """A check ends at the first value that is not of its shape."""
    try:
        for deviation in deviations:
            yield deviation.replace(f"{_ROOT}.", "")
    except MisshapenError as error:
        yield str(error).replace(f"{_ROOT}.", "")
    except OSError as error:
        yield f"{error.filename} cannot be read: {(error.strerror or str(error)).lower()}"


# --- the run's directory ---------------------------------------------------------------------


def recheck_directory(document: Mapping[str, Any], directory: Path) -> list[str]:
    """What in the run's directory does not fit the document. Files that are not there are left
    out; that they are missing is the chain's to tell."""
    root = Node(document, _ROOT)
    found: list[str] = []
    for name, check in SIDE_FILES.items():
        if (directory / name).is_file():
            found += _told(check(root, directory / name))
    for name in RECORDS:
        if (directory / f"{name}.partial").exists():
            found.append(f"{name}.partial is there: the records were never completed")
    return found


def _config_file(root: Node, path: Path) -> Iterator[str]:
    _require_small(path)
    try:
        config = read_yaml(path)
    except ConfigError as error:
        raise MisshapenError(str(error)) from None
    yield from _differences(path.name, config, root[SECTION]["config"].value)


def _environment_file(root: Node, path: Path) -> Iterator[str]:
    _require_small(path)
    try:
        environment = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise MisshapenError(f"{path.name} cannot be read: {error}") from None
    yield from _differences(path.name, environment, root[SECTION]["environment"].value)


def _require_small(path: Path) -> None:
    if path.stat().st_size > _LARGEST_SIDE_FILE:
        raise MisshapenError(f"{path.name} is far larger than such a file can be")


def _differences(name: str, there: Any, embedded: Any) -> Iterator[str]:
    found = list(unlike("", there, embedded))
    for path in found[:_MOST_DIFFERENCES]:
        yield f"{name} and the result differ in {path or 'everything'}"
    if len(found) > _MOST_DIFFERENCES:
        yield f"{name} and the result differ in {len(found) - _MOST_DIFFERENCES} more places"


def unlike(path: str, one: Any, other: Any) -> Iterator[str]:
    """Where two plain values differ. Goes down only where both do, so the cost is the smaller's."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            below = f"{path}.{key}" if path else str(key)
            if key not in one or key not in other:
                yield below
            else:
                yield from unlike(below, one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from unlike(f"{path}[{number}]", *pair)
    elif not _same(one, other):
        yield path


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each JSON line with its place, for messages."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            where = f"{path.name}, line {number},"
            try:
                yield where, orjson.loads(line)
            except orjson.JSONDecodeError:
                raise MisshapenError(f"{where} is not JSON") from None


def _edges(own: Node) -> Edges:
    phases = own["phases_ns"]
    names = ("populate_end", "precondition_end", "measure_end")
    ends = {name: phases[name].value for name in names}
    return Edges(
        populate_end_ns=None if ends["populate_end"] is None else phases["populate_end"].whole(),
        precondition_end_ns=(
            None if ends["precondition_end"] is None else phases["precondition_end"].whole()
        ),
        measure_start_ns=phases["measure_start"].whole(),
        measure_end_ns=None if ends["measure_end"] is None else phases["measure_end"].whole(),
    )


_RECORDED = ("response", "ttft", "lateness", "queue", "service")
"""Latencies that a request's record has."""


@dataclass(slots=True)
class _Asked:
    """One class's requests that completed inside the window, by the records."""

    completed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    latencies: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram() for name in _RECORDED}
    )


def _request_records(root: Node, path: Path) -> Iterator[str]:
    own = root[SECTION]
    edges, lines = _edges(own), 0
    classes = {qos.value: _Asked() for qos in Qos}
    for where, value in _lines(path):
        lines += 1
        row = Node(value, where)
        finished, qos = row["finished_ns"], row["qos"].text()
        if qos not in classes:
            raise MisshapenError(f"{where} has the class {show(qos)}, which there is not")
        at_ns = row["enqueued_ns"].whole() if finished.value is None else finished.whole()
        _note_in_flight(classes[qos], row, edges.measure_end_ns)
        if row["outcome"].text() != "completed" or edges.phase_of(at_ns) is not Phase.MEASURE:
            continue
        mine = classes[qos]
        mine.completed += 1
        mine.prompt_tokens += row["prompt_tokens"].whole()
        mine.output_tokens += row["output_tokens"].whole()
        for latency, histogram in mine.latencies.items():
            if row[f"{latency}_ns"].value is not None:
                histogram.add(row[f"{latency}_ns"].whole())
    yield from _compare(own["requests"]["submitted"], lines, f"{path.name} holds")
    for name, asked in {**classes, "all": _all_of(classes)}.items():
        stored = own["measured"][name]
        for count in ("completed", "prompt_tokens", "output_tokens"):
            yield from _compare(stored[count], getattr(asked, count), f"{path.name} gives")
        for latency, found in asked.latencies.items():
            yield from _same_histogram(stored[f"histogram_{latency}"], found, path.name)
            yield from _same_ages(stored[f"histogram_{latency}"], found, path.name)


def _note_in_flight(mine: _Asked, row: Node, end_ns: int | None) -> None:
    finished, first = (row[f"{name}_ns"].value for name in ("finished", "first_token"))
    outcome = row["outcome"].text()
    if end_ns is None or outcome == "rejected":
        return
    if outcome == "unfinished" or (finished is not None and finished > end_ns):
        age_ns = end_ns - row["intended_ns"].whole()
        mine.latencies["response"].add_in_flight(age_ns)
        if first is None or first > end_ns:
            mine.latencies["ttft"].add_in_flight(age_ns)


def _all_of(classes: Mapping[str, _Asked]) -> _Asked:
    parts = classes.values()
    return _Asked(
        completed=sum(part.completed for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        latencies={n: merged(part.latencies[n] for part in parts) for n in _RECORDED},
    )


def _same_histogram(node: Node, found: Histogram, name: str) -> Iterator[str]:
    stored = node.histogram()
    if (stored.buckets(), stored.total) != (found.buckets(), found.total):
        yield f"{node.path} is not the histogram that {name} gives"


def _same_ages(node: Node, found: Histogram, name: str) -> Iterator[str]:
    ages = [
        None if h is None else h.to_json() for h in (node.histogram().in_flight, found.in_flight)
    ]
    if ages[0] != ages[1]:
        yield f"{node.path}.in_flight is not what {name} gives"


_FLOW = ("phase", "tier", "operation", "cause", "engine")


def _transfer_records(root: Node, path: Path) -> Iterator[str]:
    own = root[SECTION]
    edges = _edges(own)
    stored = {tuple(row[n].text() for n in _FLOW): row for row in _flows(own)}
    found = {flow: _Sums() for flow in stored}
    steps: dict[tuple[str, ...], Histogram] = defaultdict(Histogram)

    def flow_of(where: str, at_ns: int, *rest: str) -> _Sums:
        flow = (edges.phase_of(at_ns).value, *rest)
        if flow not in found:
            raise MisshapenError(
                f"{where} is of {' '.join(flow)}, which kv_cache.operations has not"
            )
        return found[flow]

    for where, value in _lines(path):
        row = Node(value, where)
        ok, cause = row["error"].value is None, row["cause"].text()
        for leg in row["legs"].rows():
            rest = (leg["tier"].text(), leg["operation"].text(), cause, leg["engine"].text())
            sums = flow_of(where, leg["finished_ns"].whole(), *rest)
            phase = edges.phase_of(leg["finished_ns"].whole()).value
            for name, duration_ns in map(_pair, leg["steps"].rows()):
                steps[phase, *rest[:2], name.text()].add(duration_ns.whole())
            for call in leg["system_calls"].rows():
                pair = [number.whole() for number in call.rows()]
                if len(pair) != 2:
                    raise MisshapenError(f"{call.path} is not a pair of an instant and bytes")
                moved = flow_of(where, pair[0], *rest)
                moved.bytes += pair[1]
                moved.calls += 1
            if ok:
                sums.operations += 1
                sums.sizes.add(leg["bytes"].whole())
                sums.total.add(leg["total_ns"].whole())
                sums.device.add(leg["device_ns"].whole())
    for flow, sums in found.items():
        node = stored[flow]
        yield from _compare(node["operations"], sums.operations, f"{path.name} gives")
        yield from _compare(node["bytes"], sums.bytes, f"{path.name} gives")
        yield from _compare(node["system_calls"], sums.calls, f"{path.name} gives")
        yield from _same_histogram(node["histogram_bytes"], sums.sizes, path.name)
        yield from _same_histogram(node["histogram_total"], sums.total, path.name)
        yield from _same_histogram(node["histogram_device"], sums.device, path.name)
    for row in own["metadata"].rows():
        step = tuple(row[name].text() for name in ("phase", "tier", "operation", "step"))
        yield from _same_histogram(row["histogram"], steps[step], path.name)


def _pair(node: Node) -> tuple[Node, Node]:
    pair = list(node.rows())
    if len(pair) != 2:
        raise MisshapenError(f"{node.path} is not a pair of a name and a duration")
    return pair[0], pair[1]


SIDE_FILES: Mapping[str, Callable[[Node, Path], Iterator[str]]] = {
    "config.yaml": _config_file,
    "environment.json": _environment_file,
    "requests.jsonl": _request_records,
    "transfers.jsonl": _transfer_records,
}
"""What in a run's directory is compared with the result."""
