"""Validation: a run beside the records of a real system (`--validation-trace`).

The file is the MLPerf reference's: a JSON list with one object a request. It is read whole before
the run, and refused unless every entry is right: numbers of a system that was not looked at are
worth nothing. The comparison says what differs by how much. As in the reference only the hit rate
is judged (within 5 % of the trace's); totals depend on how long each side went on, and latencies
are of another machine.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct, field

from kv_cache.core.errors import TraceError, os_reason
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.summary import Flows, latency_ms, ratio, total_bytes
from kv_cache.result.run import MisshapenError, converted

FLAG = "--validation-trace"
TOLERANCE_PCT = 5.0
_LARGEST = 1 << 30  # bytes of a file that is held in memory
_FIRST_BAD = 5
_PERCENTILES = ("p50", "p95", "p99")
_MOST_MODELS = 20

_TIERS: Mapping[str, Tier] = {
    "gpu": Tier.GPU, "vram": Tier.GPU, "hbm": Tier.GPU,
    "cpu": Tier.CPU, "ram": Tier.CPU, "dram": Tier.CPU,
    "nvme": Tier.NVME, "storage": Tier.NVME, "disk": Tier.NVME, "ssd": Tier.NVME,
}  # fmt: skip
"""What systems call their tiers; other words are counted and not compared."""

_LOADS = (Cause.REUSE, Cause.DECODE, Cause.PROMOTION)
_STORES = (Cause.PREFILL, Cause.DECODE)


# --- one entry -------------------------------------------------------------------------------

_Whole = Annotated[float, Meta(ge=0, le=2**53, multiple_of=1)]  # beyond, JSON is not exact
_Milliseconds = Annotated[float, Meta(ge=0, le=1e12)]


class TraceEntry(Struct, frozen=True, kw_only=True):
    """One request of a real system, in the reference's keys."""

    timestamp: Annotated[float, Meta(ge=0, le=2**53)]  # s
    request_id: str | int
    user_id: str | int
    context_tokens: _Whole
    generation_tokens: _Whole
    phase: str
    cache_hit: bool
    cache_tier: str | None
    read_bytes: _Whole
    write_bytes: _Whole
    read_latency_ms: _Milliseconds
    write_latency_ms: _Milliseconds
    model_name: str
    conversation_id: str | int | None = None
    turn_number: _Whole | None = None
    prefix_cached: bool | None = None


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the trace -------------------------------------------------------------------------------


class _Side(Struct, eq=False):
    """Reads or writes of the trace: entries that moved bytes, and how long they took."""

    bytes: int = 0
    latency: Histogram = field(default_factory=Histogram)

    def add(self, nbytes: int, latency: float) -> None:
        if nbytes:
            self.bytes += nbytes
            self.latency.add(round(latency * NS_PER_MS))


class ValidationTrace(Struct, eq=False):
    """What a trace says of its system. `tiers` are reads by the tier that the entry names."""

    path: str
    sha256: str
    entries: int = 0
    hits: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    context_tokens: int = 0
    generation_tokens: int = 0
    read: _Side = field(default_factory=_Side)
    write: _Side = field(default_factory=_Side)
    tiers: dict[Tier, _Side] = field(default_factory=dict)
    tier_words: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)

    def add(self, entry: TraceEntry) -> None:
        at_s = entry.timestamp
        self.first_s = min(self.first_s, at_s) if self.entries else at_s
        self.last_s = max(self.last_s, at_s)
        self.entries += 1
        self.hits += entry.cache_hit
        self.context_tokens += int(entry.context_tokens)
        self.generation_tokens += int(entry.generation_tokens)
        read_bytes = int(entry.read_bytes)
        self.read.add(read_bytes, entry.read_latency_ms)
        self.write.add(int(entry.write_bytes), entry.write_latency_ms)
        self.models[entry.model_name] += 1
        if word := entry.cache_tier:
            self.tier_words[word] += 1
            tier = _TIERS.get(word.lower())
            if tier is not None:
                self.tiers.setdefault(tier, _Side()).add(read_bytes, entry.read_latency_ms)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.entries

    def stats(self) -> dict[str, Any]:
        """Return what the result says of the trace itself."""
        return {
            "path": self.path,
            "sha256": self.sha256,
            "total_requests": self.entries,
            "duration_seconds": self.last_s - self.first_s,
            "cache_hit_rate": self.hit_rate,
            "read_bytes": self.read.bytes,
            "write_bytes": self.write.bytes,
            "read_write_ratio": self.read.bytes / max(self.write.bytes, 1),
            "context_tokens_mean": self.context_tokens / self.entries,
            "generation_tokens_mean": self.generation_tokens / self.entries,
            "read_latency_ms": latency_ms(self.read.latency, _PERCENTILES),
            "write_latency_ms": latency_ms(self.write.latency, _PERCENTILES),
            "cache_tiers": dict(self.tier_words.most_common(_MOST_MODELS)),
            "models": dict(self.models.most_common(_MOST_MODELS)),
        }


def read_validation(path: Path) -> ValidationTrace:
    """Read the whole file. Raises TraceError if it is missing, empty, not a JSON list, or has wrong
    entries: it names the first five, and counts the rest."""
    data = _bytes(path)
    entries = _list(path, data)
    trace = ValidationTrace(str(path), hashlib.sha256(data).hexdigest())
    wrong = 0
    named: list[str] = []
    for number, entry in enumerate(entries, 1):
        try:
            trace.add(converted(entry, TraceEntry, f"entry {number}"))
        except MisshapenError as error:
            wrong += 1
            if len(named) < _FIRST_BAD:
                named.append(str(error))
    if wrong:
        more = f"; and {wrong - len(named)} more" if wrong > len(named) else ""
        raise TraceError(
            f"{FLAG} {path}: {wrong} of {len(entries)} entries are not right ({'; '.join(named)}"
            f"{more}); correct the file, or leave {FLAG} out"
        )
    return trace


def _bytes(path: Path) -> bytes:
    way_out = f"name a file with the entries of a system, or leave {FLAG} out"
    try:
        if path.exists() and not path.is_file():
            raise TraceError(f"{FLAG} {path}: it is not a regular file; {way_out}")
        if path.stat().st_size > _LARGEST:
            raise TraceError(
                f"{FLAG} {path}: it is larger than {_LARGEST >> 30} GiB, and is held in memory; "
                "cut it into parts"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = os_reason(error)
        raise TraceError(f"{FLAG} {path}: it cannot be read ({reason}); {way_out}") from None
    if not data.strip():
        raise TraceError(f"{FLAG} {path}: it is empty; {way_out}")
    return data


def _list(path: Path, data: bytes) -> list[Any]:
    try:
        entries = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise TraceError(
            f"{FLAG} {path}: it is not JSON ({error}); give the whole file, a list of objects"
        ) from None
    if not isinstance(entries, list):
        raise TraceError(
            f"{FLAG} {path}: expected a list of objects, one a request, found {_shown(entries)}; "
            "put the entries into a list"
        )
    if not entries:
        raise TraceError(f"{FLAG} {path}: the list is empty; there is nothing to compare with")
    return entries


# --- the comparison --------------------------------------------------------------------------


def validated_line(validation: Mapping[str, Any]) -> str:
    """Return the hit rate beside that of a real system: what the reference judges."""
    row = validation["comparison"]["cache_hit_rate"]
    ours = "nothing looked up" if row["benchmark"] is None else f"{100 * row['benchmark']:.1f} %"
    error = "" if row["error_pct"] is None else f"{row['error_pct']:.1f} % off, "
    within = "within" if validation["passed"] else "NOT within"
    theirs = f"in the trace {100 * row['trace']:.1f} %"
    return f"validated  hit rate {ours}, {theirs}: {error}{within} 5 % (all rows: validation)"


def compare(trace: ValidationTrace, outcome: RunOutcome) -> dict[str, Any]:
    """Return the key `validation` of the result: the reference's keys, and a row for each
    number."""
    rows = {"cache_hit_rate": _row(_hit_rate(outcome), trace.hit_rate)}
    rows |= dict(_byte_rows(trace, outcome))
    if outcome.driver == "real-io":  # virtual time measures nothing
        rows |= dict(_latency_rows(trace, outcome))
    judged = rows["cache_hit_rate"]
    return {
        "passed": judged["within_5pct"],
        "avg_error_pct": judged["error_pct"],
        "judged": ["cache_hit_rate"],
        "comparison": rows,
        "trace_stats": trace.stats(),
    }


def _row(benchmark: float | None, trace: float | None) -> dict[str, Any]:
    """Compare two numbers; the error is relative to the trace, and None if one side has no
    number."""
    error: float | None = None
    if benchmark is not None and trace:
        error = 100 * abs(benchmark - trace) / trace
    elif benchmark is not None and benchmark == trace:
        error = 0.0
    return {
        "benchmark": benchmark,
        "trace": trace,
        "error_pct": error,
        "within_5pct": error is not None and error <= TOLERANCE_PCT,
    }


def _hit_rate(outcome: RunOutcome) -> float | None:
    """Return the hit rate as in the reference's `cache_hit_rate`; None if nothing was looked up."""
    reuse = outcome.recorder.reuse
    lookups = reuse.looked_up + reuse.decode_looked_up
    return (reuse.hits + reuse.decode_hits) / lookups if lookups else None


def _byte_rows(trace: ValidationTrace, outcome: RunOutcome) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bytes that requests read and wrote: without demotions, which a request does not see."""
    done = outcome.recorder.all.completed
    sides = {
        "read": (_moved(outcome, OpKind.READ, _LOADS), trace.read),
        "write": (_moved(outcome, OpKind.WRITE, _STORES), trace.write),
    }
    for name, (mine, theirs) in sides.items():
        yield f"{name}_bytes", _row(mine, theirs.bytes)
        each = mine / done if done else None
        yield f"{name}_bytes_per_request", _row(each, theirs.bytes / trace.entries)
    everything, (loaded, _) = trace.read.bytes, sides["read"]
    for tier, theirs in sorted(trace.tiers.items()):
        mine = _moved(outcome, OpKind.READ, _LOADS, tier)
        share = ratio(mine, loaded) if loaded else None
        yield f"{tier.label}_read_share", _row(share, ratio(theirs.bytes, everything))


def _latency_rows(
    trace: ValidationTrace, outcome: RunOutcome
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a request waited for its loads and for its stores; by tier, single reads."""
    recorder = outcome.recorder
    yield from _latencies("read_latency", recorder.loads, trace.read.latency)
    yield from _latencies("write_latency", recorder.stores, trace.write.latency)
    for tier, theirs in sorted(trace.tiers.items()):
        mine = merged(s.total for s in Flows(recorder.flows).measured(tier, OpKind.READ, _LOADS))
        yield from _latencies(f"{tier.label}_read_latency", mine, theirs.latency)


def _latencies(
    name: str, mine: Histogram, theirs: Histogram
) -> Iterator[tuple[str, dict[str, Any]]]:
    if not theirs.count:
        return
    of_trace, of_run = latency_ms(theirs, _PERCENTILES), latency_ms(mine, _PERCENTILES)
    for part, value in of_trace.items():
        yield f"{name}_{part}_ms", _row(of_run[part], value)


def _moved(
    outcome: RunOutcome, kind: OpKind, causes: tuple[Cause, ...], tier: Tier | None = None
) -> int:
    return total_bytes(Flows(outcome.recorder.flows).measured(tier, kind, causes))
