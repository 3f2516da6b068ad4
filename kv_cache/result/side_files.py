"""Compares the files of a run's directory with its result: the configuration, the environment, and
ledger and histograms counted again from the records."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec import Struct, field
from msgspec.structs import asdict

from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.bounded import Count
from kv_cache.core.errors import ConfigError, os_reason
from kv_cache.core.kinds import Cause, OpKind, Outcome, Phase, Qos, TierLabel
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.recorder import Edges
from kv_cache.result.counted import OperationRow, RequestCounts
from kv_cache.result.difference import differences
from kv_cache.result.run import CountedRun, MisshapenError, read_run

RECORDS = ("requests.jsonl", "transfers.jsonl")
_LARGEST_SIDE_FILE = 64 << 20
_LONGEST_LINE = 64 << 20
_MOST_DIFFERENCES = 5

T = TypeVar("T")


def recheck_directory(document: Mapping[str, Any], directory: Path) -> list[str]:
    """Return what in the run's directory does not fit the document. Files that are not there are
    left out; the chain reports that they are missing."""
    try:
        run = read_run(document)
    except MisshapenError:
        return []  # which `verify.recheck` says
    sentences: list[str] = []
    for name, check in SIDE_FILES.items():
        if (directory / name).is_file():
            sentences += _said(check(run, directory / name))
    for name in RECORDS:
        if (directory / f"{name}.partial").exists():
            sentences.append(f"{name}.partial is there: the records were never completed")
    return sentences


def _said(deviations: Iterator[str]) -> Iterator[str]:
    """Yield deviations up to the first value that does not have its shape."""
    try:
        yield from deviations
    except MisshapenError as error:
        yield str(error)
    except OSError as error:
        yield f"{error.filename} cannot be read: {os_reason(error)}"


# --- configuration and environment -----------------------------------------------------------


def _config_file(run: CountedRun, path: Path) -> Iterator[str]:
    _require_small(path)
    try:
        config = read_yaml(path)
    except ConfigError as error:
        raise MisshapenError(str(error)) from None
    yield from _unlike(path.name, config, run.facts.config)


def _environment_file(run: CountedRun, path: Path) -> Iterator[str]:
    _require_small(path)
    try:
        environment = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise MisshapenError(f"{path.name} cannot be read: {error}") from None
    yield from _unlike(path.name, environment, run.facts.environment)


def _require_small(path: Path) -> None:
    if path.stat().st_size > _LARGEST_SIDE_FILE:
        raise MisshapenError(f"{path.name} is far larger than such a file can be")


def _unlike(name: str, there: Any, embedded: Any) -> Iterator[str]:
    several = list(differences(there, embedded))
    for difference in several[:_MOST_DIFFERENCES]:
        yield f"{name} and the result differ in {difference.path}"
    if len(several) > _MOST_DIFFERENCES:
        yield f"{name} and the result differ in {len(several) - _MOST_DIFFERENCES} more places"


# --- records ---------------------------------------------------------------------------------


class RequestLine(Struct, frozen=True):
    """What is counted of a line of requests.jsonl."""

    qos: Qos
    outcome: Outcome
    prompt_tokens: Count
    output_tokens: Count
    intended_ns: int
    enqueued_ns: Count
    first_token_ns: Count | None
    finished_ns: Count | None
    response_ns: Count | None
    ttft_ns: Count | None
    lateness_ns: Count | None
    queue_ns: Count | None
    service_ns: Count | None


class LegLine(Struct, frozen=True):
    """One side of an operation."""

    tier: TierLabel
    operation: OpKind
    engine: str
    bytes: Count
    started_ns: Count
    finished_ns: Count
    total_ns: Count
    device_ns: Count
    steps: list[tuple[str, Count]]
    system_calls: list[tuple[Count, Count]]


class TransferLine(Struct, frozen=True):
    """What is counted of a line of transfers.jsonl."""

    cause: Cause
    error: str | None
    legs: list[LegLine]


def _lines(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield each line with its place, for messages."""
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            where = f"{path.name}, line {number},"
            try:
                yield where, decoder.decode(line)
            except msgspec.ValidationError as error:
                raise MisshapenError(f"{where} is not a record: {error}") from None
            except msgspec.DecodeError:
                raise MisshapenError(f"{where} is not JSON") from None


def _edges(run: CountedRun) -> Edges:
    ends = asdict(run.facts.phases_ns)
    return Edges(**{f"{name}_ns": at_ns for name, at_ns in ends.items()})


_RECORDED = ("response", "ttft", "lateness", "queue", "service")
"""Latencies that a request's record has."""


class _Recounted(Struct):
    """One class's requests that completed inside the window, by the records."""

    completed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram() for name in _RECORDED}
    )

    def add(self, line: RequestLine) -> None:
        self.completed += 1
        self.prompt_tokens += line.prompt_tokens
        self.output_tokens += line.output_tokens
        for latency, histogram in self.histograms.items():
            value = getattr(line, f"{latency}_ns")
            if value is not None:
                histogram.add(value)

    def note_in_flight(self, line: RequestLine, end_ns: int | None) -> None:
        """Add the age of a request that had not been answered when the window closed."""
        if end_ns is None or line.outcome is Outcome.REJECTED:
            return
        late = line.finished_ns is not None and line.finished_ns > end_ns
        if line.outcome is Outcome.UNFINISHED or late:
            age_ns = end_ns - line.intended_ns
            self.histograms["response"].add_in_flight(age_ns)
            if line.first_token_ns is None or line.first_token_ns > end_ns:
                self.histograms["ttft"].add_in_flight(age_ns)


def _request_records(run: CountedRun, path: Path) -> Iterator[str]:
    edges, count = _edges(run), 0
    classes = {qos: _Recounted() for qos in Qos}
    for _, line in _lines(path, RequestLine):
        count += 1
        at_ns = line.enqueued_ns if line.finished_ns is None else line.finished_ns
        classes[line.qos].note_in_flight(line, edges.measure_end_ns)
        if line.outcome is Outcome.COMPLETED and edges.phase_of(at_ns) is Phase.MEASURE:
            classes[line.qos].add(line)
    submitted, names = run.facts.requests.submitted, ("completed", "prompt_tokens", "output_tokens")
    yield from _unless_same("kv_cache.requests.submitted", submitted, count, path.name)
    for qos, counts in classes.items():
        stored = run.facts.measured.of(qos)
        yield from _row_unlike(f"kv_cache.measured.{qos}", stored, counts, names, path.name)


def _row_unlike(
    place: str,
    stored: RequestCounts | OperationRow,
    again: "_Recounted | _Moved",
    names: Sequence[str],
    source: str,
    *,
    cut_off: bool = False,
) -> Iterator[str]:
    """Compare the counts of these names, and every histogram. `cut_off`: what had not ended may
    have no record."""
    for name in names:
        mine, count = getattr(stored, name), getattr(again, name)
        yield from _unless_same(f"{place}.{name}", mine, count, source)
    for name, histogram in again.histograms.items():
        where = f"{place}.histogram_{name}"
        mine = getattr(stored, f"histogram_{name}")
        yield from _unless_same_histogram(where, mine, histogram, source, cut_off=cut_off)


def _unless_same(place: str, stored: int, count: int, source: str) -> Iterator[str]:
    if stored != count:
        yield f"{place} says {stored}, but {source} gives {count}"


def _unless_same_histogram(
    place: str, stored: Histogram, counted: Histogram, source: str, *, cut_off: bool = False
) -> Iterator[str]:
    if (stored.buckets(), stored.total) != (counted.buckets(), counted.total):
        yield f"{place} is not the histogram that {source} gives"
    mine, recorded = (h or Histogram() for h in (stored.in_flight, counted.in_flight))
    if cut_off:
        ages = mine.buckets()
        unlike = any(n > ages.get(age, 0) for age, n in recorded.buckets().items())
    else:
        unlike = mine.to_json() != recorded.to_json()
    if unlike:
        yield f"{place}.in_flight is not what {source} gives"


class _Moved(Struct):
    """Operations of one row of the ledger, by the records."""

    bytes: int = 0
    system_calls: int = 0
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {n: Histogram() for n in ("total", "device", "host", "bytes")}
    )

    def add(self, leg: LegLine) -> None:
        values = {"total": leg.total_ns, "device": leg.device_ns, "bytes": leg.bytes}
        if leg.operation is not OpKind.DELETE:
            values["host"] = max(0, leg.total_ns - leg.device_ns)
        for name, value in values.items():
            self.histograms[name].add(value)

    def note_in_flight(self, leg: LegLine, end_ns: int) -> None:
        """Add the age of a leg that had not ended when the window closed."""
        late_ns = leg.finished_ns - end_ns
        self.histograms["total"].add_in_flight(leg.total_ns - late_ns)
        self.histograms["device"].add_in_flight(leg.device_ns - late_ns)


def _transfer_records(run: CountedRun, path: Path) -> Iterator[str]:
    edges, facts = _edges(run), run.facts
    cut_off = (facts.driver, facts.status, facts.unanswered) != ("real-io", "finished", None)
    stored = {
        (row.phase, row.tier, row.operation, row.cause, row.engine): row
        for row in run.facts.operations
    }
    moved = {flow: _Moved() for flow in stored}
    steps: dict[tuple[str, ...], Histogram] = defaultdict(Histogram)

    def row_of(where: str, at_ns: int, cause: Cause, leg: LegLine) -> _Moved:
        flow = (edges.phase_of(at_ns), leg.tier, leg.operation, cause, leg.engine)
        if flow not in moved:
            named = " ".join(str(part) for part in flow)
            raise MisshapenError(f"{where} is of {named}, which kv_cache.operations has not")
        return moved[flow]

    for where, line in _lines(path, TransferLine):
        for leg in line.legs:
            row = row_of(where, leg.finished_ns, line.cause, leg)
            phase = edges.phase_of(leg.finished_ns)
            for name, duration_ns in leg.steps:
                steps[phase, leg.tier, leg.operation, name].add(duration_ns)
            for at_ns, nbytes in leg.system_calls:
                calls = row_of(where, at_ns, line.cause, leg)
                calls.bytes += nbytes
                calls.system_calls += 1
            if line.error is None:
                row.add(leg)
            end_ns = edges.measure_end_ns
            if end_ns is not None and leg.started_ns <= end_ns and phase is Phase.DRAIN:
                row_of(where, end_ns, line.cause, leg).note_in_flight(leg, end_ns)
    for number, (flow, sums) in enumerate(moved.items()):
        place, names = f"kv_cache.operations[{number}]", ("bytes", "system_calls")
        yield from _row_unlike(place, stored[flow], sums, names, path.name, cut_off=cut_off)
    for number, step in enumerate(run.facts.metadata):
        again = steps[step.phase, step.tier, step.operation, step.step]
        place = f"kv_cache.metadata[{number}].histogram"
        yield from _unless_same_histogram(place, step.histogram, again, path.name)


SIDE_FILES: Mapping[str, Callable[[CountedRun, Path], Iterator[str]]] = {
    "config.yaml": _config_file,
    "environment.json": _environment_file,
    "requests.jsonl": _request_records,
    "transfers.jsonl": _transfer_records,
}
"""What in a run's directory is compared with the result."""
