"""A result as a spreadsheet: the reference's sheets and columns, with the values of the result.

A value that the result does not have is an empty cell. The same result gives the same bytes.
"""

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.config.root import DEFAULT_DURATION_S
from kv_cache.core.errors import PlaceError
from kv_cache.core.kinds import Qos
from kv_cache.core.text import printable
from kv_cache.files.reading import require_replaceable
from kv_cache.files.writing import write_atomically
from kv_cache.metrics.tracing import HISTOGRAMS
from kv_cache.result.metrics import Json
from kv_cache.result.paths import list_at, value_at
from kv_cache.view.identity import doubts
from kv_cache.view.parts import BarChart, Cell, Figure, FlowDiagram, IntervalChart, Table, View
from kv_cache.view.workbook import CORE, MARK, Sheet, workbook_bytes

_EARLIEST = datetime(1980, 1, 1)
"""Before it no file in a workbook can have been made."""

FLAG = "--xlsx-output"
NONE, NO_PLACE = "N/A", "temp"
NOT_JUDGED = "N/A (throughput mode)"

_CORE_LARGEST = 1 << 16  # bytes of it that are looked at


# --- cells out of a result -------------------------------------------------------------------


def _cell(value: Any) -> Cell:
    return value if isinstance(value, str | int | float) else None


def _config(path: str) -> Callable[[Json], Cell]:
    return lambda document: _cell(value_at(document, f"kv_cache.config.{path}"))


def _result(path: str) -> Callable[[Json], Cell]:
    return lambda document: _cell(value_at(document, path))


def _timestamp(document: Json) -> Cell:
    """When the run began, in UTC; nothing in virtual time."""
    text = value_at(document, "kv_cache.started_utc")
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except (TypeError, ValueError):
        return None


def _model(document: Json) -> Cell:
    mix = value_at(document, "kv_cache.config.run.model_mix")
    if isinstance(mix, Mapping) and mix:
        return ",".join(f"{name}={weight}" for name, weight in mix.items())
    return _cell(value_at(document, "kv_cache.config.run.model"))


def _duration(document: Json) -> Cell:
    """As asked for; a run that requests or cycles end has none."""
    config = value_at(document, "kv_cache.config")
    if (value := value_at(config, "run.duration_s")) is not None:
        return _cell(value)
    bounded = value_at(config, "run.max_requests") or value_at(config, "workload.replay_cycles")
    return NONE if bounded else DEFAULT_DURATION_S


def _all_gpus(document: Json) -> Cell:
    each, cards = (
        value_at(document, f"kv_cache.config.tiers.{n}") for n in ("gpu_mem_gib", "num_gpus")
    )
    return each * cards if isinstance(each, int | float) and isinstance(cards, int) else None


def _dataset(document: Json) -> Cell:
    """Whatever was replayed."""
    work = value_at(document, "kv_cache.config.workload")
    burst = value_at(work, "burst_trace_path") if value_at(work, "use_burst_trace") else None
    return _cell(value_at(work, "dataset_path") or burst or value_at(work, "trace")) or NONE


def _cache_dir(document: Json) -> Cell:
    value = value_at(document, "kv_cache.config.tiers.cache_dir")
    ranks = value_at(document, "kv_cache.ranks")
    if value is None and isinstance(ranks, list):  # each rank has its own
        each = [value_at(row, "result.kv_cache.config.tiers.cache_dir") for row in ranks]
        value = [name for names in each if isinstance(names, list) for name in names]
    return ", ".join(map(str, value)) if isinstance(value, list) and value else NO_PLACE


def _threads(document: Json) -> Cell:
    """As many as there are cores where none were asked for."""
    value = value_at(document, "kv_cache.config.precondition.threads")
    return _cell(value or value_at(document, "summary.system_metrics.cpu_count"))


PARAMETERS: Mapping[str, Callable[[Json], Cell]] = {
    "Timestamp": _timestamp,
    "Model": _model,
    "Num Users": _config("run.num_users"),
    "Duration (s)": _duration,
    "GPU Memory per Card (GiB)": _config("tiers.gpu_mem_gib"),
    "Num GPUs": _config("tiers.num_gpus"),
    "Tensor Parallel": _config("tiers.tensor_parallel"),
    "Total GPU Memory (GiB)": _all_gpus,
    "CPU Memory (GiB)": _config("tiers.cpu_mem_gib"),
    "Generation Mode": _config("run.generation_mode"),
    "Performance Profile": _config("run.performance_profile"),
    "Multi-turn": _config("workload.multi_turn"),
    "Prefix Caching": _config("workload.prefix_caching"),
    "RAG Enabled": _config("rag.enabled"),
    "Autoscaling": _config("autoscaler.enabled"),
    "Seed": _result("seed"),
    "Max Concurrent Allocs": _config("schedule.max_concurrent_allocs"),
    "Request Rate": _config("arrival.request_rate"),
    "Max Requests": _config("run.max_requests"),
    "Dataset Path": _dataset,
    "Cache Dir": _cache_dir,
    "Storage Capacity (GiB)": _config("tiers.storage_capacity_gib"),
    "Precondition": _config("precondition.enabled"),
    "Precondition Size (GiB)": _config("precondition.size_gib"),
    "Precondition Threads": _threads,
    "Trace Speedup": _config("workload.trace_speedup"),
    "Replay Cycles": _config("workload.replay_cycles"),
}
"""Columns of a run's parameters, in the reference's order."""

_PERCENTILES = {"P50": "p50", "P95": "p95", "P99": "p99", "P99.9": "p999", "P99.99": "p9999"}
_WITH_MEAN = {"Mean": "mean", **_PERCENTILES}
_TIERS = {"GPU": "gpu", "CPU": "cpu", "Storage": "storage"}
_STATS = "summary.cache_stats"

_LATENCIES = (
    ("E2E", "end_to_end_latency_ms", _WITH_MEAN),
    ("Storage", "storage_io_latency_ms", _WITH_MEAN),
    ("Gen", "generation_latency_ms", {n: _WITH_MEAN[n] for n in ("Mean", "P50", "P95", "P99")}),
)
_STORAGE_PARTS = (("Total", ""), ("Device", "device_"), ("Host", "host_"))

METRICS: Mapping[str, Callable[[Json], Cell]] = {
    "Total Requests": _result("summary.total_requests"),
    "Total Tokens": _result("summary.total_tokens"),
    "Elapsed Time (s)": _result("summary.elapsed_time"),
    "Avg Throughput (tok/s)": _result("summary.avg_throughput_tokens_per_sec"),
    "Storage Throughput (tok/s)": _result("summary.storage_throughput_tokens_per_sec"),
    "Requests/sec": _result("summary.requests_per_second"),
    **{
        f"{label} Latency {name} (ms)": _result(f"summary.{key}.{percentile}")
        for label, key, percentiles in _LATENCIES
        for name, percentile in percentiles.items()
    },
    **{
        f"Storage Tier {kind} {part} {name} (ms)": _result(
            f"{_STATS}.storage_{kind.lower()}_{prefix}{percentile}_ms"
        )
        for part, prefix in _STORAGE_PARTS
        for kind in ("Read", "Write")
        for name, percentile in _PERCENTILES.items()
    },
    "Cache Hit Rate": _result(f"{_STATS}.cache_hit_rate"),
    "Read/Write Ratio": _result(f"{_STATS}.read_write_ratio"),
    "Total Read (GiB)": _result(f"{_STATS}.total_read_gb"),
    "Total Write (GiB)": _result(f"{_STATS}.total_write_gb"),
    **{
        f"Tier {name} KV Bytes {past} (GiB)": _result(
            f"{_STATS}.tier_{tier}_kv_bytes_{past.lower()}_gb"
        )
        for past in ("Written", "Read")
        for name, tier in _TIERS.items()
    },
    **{
        f"Tier {name} {kind} Bandwidth (GiB/s)": _result(
            f"{_STATS}.tier_{tier}_{kind.lower()}_bandwidth_gbps"
        )
        for name, tier in _TIERS.items()
        for kind in ("Read", "Write")
    },
    **{f"{name} Entries": _result(f"{_STATS}.{tier}_entries") for name, tier in _TIERS.items()},
    "Multi-turn Hit Rate": _result("summary.multi_turn_stats.hit_rate"),
}
"""Columns of what was measured, in the reference's order."""

COLUMNS = {**PARAMETERS, **METRICS}
"""Of the sheet Summary, and of the CSV, in the reference."""

CSV_MARK = ",".join(list(COLUMNS)[:5])
"""How each CSV begins, the reference's too; a file that begins so may be replaced."""

TRACED: Mapping[str, str] = {
    "d2c_read_us": "D2C Read (us)",
    "d2c_write_us": "D2C Write (us)",
    "q2d_read_us": "Q2D Read (us)",
    "q2d_write_us": "Q2D Write (us)",
    "vfs_read_us": "VFS Read (us)",
    "vfs_write_us": "VFS Write (us)",
    "fsync_us": "fsync (us)",
    "write_to_fsync_us": "Write-to-fsync (us)",
    "fadvise_to_read_us": "fadvise-to-read (us)",
    "bssplit_read_kb": "Block Size Read (KiB)",
    "bssplit_write_kb": "Block Size Write (KiB)",
    "qd_read": "Queue Depth Read",
    "qd_write": "Queue Depth Write",
    "lba_read_gb": "LBA Heatmap Read (GiB)",
    "lba_write_gb": "LBA Heatmap Write (GiB)",
}
"""Histograms of the block layer with the reference's names for them."""


def _reasons(document: Json) -> Cell:
    section = value_at(document, "kv_cache")
    reasons = list_at(section, "passport.reasons")
    return "; ".join(doubts(section, [str(text) for text in reasons])) or None


_VERDICT: Mapping[str, Callable[[Json], Cell]] = {
    "Verdict": _result("kv_cache.passport.verdict"),
    "Reasons": _reasons,
}
"""After the reference's columns: numbers go nowhere without their verdict."""


# --- sheets ----------------------------------------------------------------------------------


def sheets(documents: Sequence[Json]) -> list[Sheet]:
    """The workbook of a result. Of several there is the summary alone, with a row for each."""
    every = [_summary(documents)]
    if len(documents) > 1:
        return every
    [document] = documents
    every += [
        _pairs("Run Parameters", "Parameter", PARAMETERS, document),
        _pairs("Performance Metrics", "Metric", METRICS, document),
    ]
    others = (_qos(document), _device_tracing(document), _trace_histograms(document))
    return every + [sheet for sheet in others if sheet.rows]


def _summary(documents: Sequence[Json]) -> Sheet:
    columns = {**COLUMNS, **_VERDICT}
    rows = tuple(tuple(cell(document) for cell in columns.values()) for document in documents)
    return Sheet(name="Summary", columns=tuple(columns), rows=rows)


def _pairs(
    name: str, first: str, cells: Mapping[str, Callable[[Json], Cell]], document: Json
) -> Sheet:
    rows = tuple((label, cell(document)) for label, cell in cells.items())
    return Sheet(name=name, columns=(first, "Value"), rows=rows)


def _qos(document: Json) -> Sheet:
    """Classes of which requests ended. An SLO is of latency, which a run for throughput is
    not judged by."""
    judged = value_at(document, "kv_cache.config.run.performance_profile") != "throughput"
    return Sheet(
        name="QoS Metrics",
        columns=(
            *("QoS Level", "Total Requests", "Latency P95 (ms)", "Latency P99 (ms)"),
            *("SLA Met", "SLA Compliance"),
        ),
        rows=tuple(_qos_rows(value_at(document, "summary.qos_metrics"), judged=judged)),
    )


def _qos_rows(classes: Any, *, judged: bool) -> Iterator[tuple[Cell, ...]]:
    for qos in Qos:
        numbers = value_at(classes, qos.value)
        if not isinstance(numbers, Mapping) or numbers.get("no_data"):
            continue
        kept = (_cell(value_at(numbers, "sla.met")), _cell(value_at(numbers, "sla.compliance")))
        yield (
            qos.value,
            _cell(numbers.get("total_requests")),
            _cell(value_at(numbers, "latency_ms.p95")),
            _cell(value_at(numbers, "latency_ms.p99")),
            *(kept if judged else (NOT_JUDGED, NOT_JUDGED)),
        )


_Bucket = tuple[Cell, Cell, int]


def _traced(document: Json) -> Iterator[tuple[str, list[_Bucket]]]:
    """Each histogram of the block layer that has values: its name, and low, high and count of its
    buckets; an open end is None."""
    for name in TRACED:
        rows = value_at(document, f"device_latency_tracing.{name}.buckets")
        buckets = [b for b in map(_bucket, rows if isinstance(rows, list) else []) if b]
        if sum(count for _, _, count in buckets):
            yield name, buckets


def _bucket(row: Any) -> _Bucket | None:
    ends, count = value_at(row, "range_us"), value_at(row, "count")
    if not isinstance(ends, list) or len(ends) != 2 or not isinstance(count, int):
        return None
    return _cell(ends[0]), _cell(ends[1]), count


def _device_tracing(document: Json) -> Sheet:
    """Percentiles are the lower ends of their buckets, as in the reference."""
    rows = []
    for name, buckets in _traced(document):
        samples = sum(count for _, _, count in buckets)
        ranks = [_lowvalue_at(buckets, percent, samples) for percent in (50, 95, 99)]
        ends = buckets[0][0], buckets[-1][1]
        rows.append((TRACED[name], HISTOGRAMS[name][1], samples, *ranks, *ends))
    return Sheet(
        name="Device Tracing",
        columns=(
            *("Metric", "Description", "Samples", "P50", "P95", "P99"),
            *("Min Bucket", "Max Bucket"),
        ),
        rows=tuple(rows),
    )


def _lowvalue_at(buckets: Sequence[_Bucket], percent: int, samples: int) -> Cell:
    below = 0
    for low, _, count in buckets:
        below += count
        if 100 * below >= percent * samples:
            return low
    return None


def _trace_histograms(document: Json) -> Sheet:
    rows = tuple((TRACED[name], *b) for name, buckets in _traced(document) for b in buckets)
    return Sheet(
        name="Trace Histograms",
        columns=("Histogram", "Bucket Low", "Bucket High", "Count"),
        rows=rows,
    )


# --- files -----------------------------------------------------------------------------------


def summary_csv(documents: Sequence[Json]) -> bytes:
    """The sheet Summary as CSV: a row for each result."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    sheet = _summary(documents)
    writer.writerow(sheet.columns)
    writer.writerows([_plain(cell) for cell in row] for row in sheet.rows)
    return text.getvalue().encode()


def _plain(cell: Cell) -> Cell:
    """Return what no terminal obeys and no spreadsheet computes: names come out of files that
    anybody may have written."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell, instead=" ")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def workbook(documents: Sequence[Json], view: View | None = None) -> bytes:
    """The reference's sheets of runs, then the tables of a view, a sheet each, as an .xlsx file. A
    document without a run does not say when it was made, and the clock of now would change the
    bytes."""
    runs = sheets(documents) if documents else []
    more = [] if view is None else _view_sheets(view)
    return workbook_bytes([*runs, *more], _created(documents) if documents else _EARLIEST)


def tables(view: View) -> list[Table]:
    """All tables, and the points of each figure, each with a title."""
    return [
        replace(table, title=table.title or section.title)
        for section in view.sections
        for part in section.parts
        if isinstance(part, Table | Figure | BarChart | IntervalChart | FlowDiagram)
        for table in [part if isinstance(part, Table) else part.table()]
    ]


def rows(table: Table) -> list[list[Cell]]:
    """The cells in the units that are shown, not rounded."""
    return [
        [
            cell if isinstance(cell, str) else column.shown(cell)
            for column, cell in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]


def _view_sheets(view: View) -> list[Sheet]:
    """The answer and what it rests on, then each table."""
    words = [
        (view.heading, view.status),
        ("answer", view.sentence),
        *(("reason", text) for text in view.reasons),
        *(("about", text) for text in view.about),
    ]
    return [
        Sheet(name="Answer", columns=("what", "text"), rows=tuple(words)),
        *_table_sheets(view),
    ]


def _table_sheets(view: View) -> list[Sheet]:
    return [
        Sheet(
            name=f"{number} {table.title}"[:_LONGEST_NAME].translate(_NOT_IN_NAMES),
            columns=tuple(table.headings),
            rows=tuple(map(tuple, rows(table))),
        )
        for number, table in enumerate(tables(view), start=1)
    ]


_LONGEST_NAME = 31  # letters of a sheet's name that a workbook can have
_NOT_IN_NAMES = str.maketrans(dict.fromkeys("[]:*?/\\", " "))


def _created(documents: Sequence[Json]) -> datetime:
    """When the first run began: the clock of now would change the bytes."""
    text = _timestamp(documents[0])
    begin = datetime.fromisoformat(text) if isinstance(text, str) else datetime(2000, 1, 1)
    return max(begin, _EARLIEST)


class Target(Struct, frozen=True, kw_only=True):
    """Where the spreadsheet will be, and a sentence where that is not what was asked for."""

    path: Path
    note: str | None = None

    def write(self, document: Json) -> None:
        """Raises OSError."""
        make = workbook if self.path.suffix.lower() == ".xlsx" else summary_csv
        write_atomically(self.path, make([document]))


def target_of(wanted: Path) -> Target:
    """A workbook or CSV by the name; for any other name the summary as CSV."""
    if wanted.suffix.lower() in (".csv", ".xlsx"):
        return Target(path=wanted)
    path = wanted.with_name(f"{wanted.name}.csv")
    why = "it does not end in .xlsx"
    return Target(path=path, note=f"{FLAG} {wanted}: the summary goes to {path} as CSV, as {why}")


def check_target(wanted: Path) -> Target:
    """Refuse a place that cannot be written, or that holds a file which is none of ours. Raises
    PlaceError."""
    if wanted.is_dir():  # whatever it will be called in the end
        require_replaceable(wanted, "", FLAG)
    target = target_of(wanted)
    if target.path.suffix.lower() == ".xlsx":
        require_workbook(target.path, FLAG)
    else:
        require_replaceable(target.path, CSV_MARK, FLAG)
    return target


def require_workbook(path: Path, flag: str) -> None:
    """As `require_replaceable`, for a workbook. Raises PlaceError."""
    require_replaceable(path, "", flag)
    if path.exists() and not _ours(path):
        raise PlaceError(
            f"{flag} {path}: a file of that name is there which this program did not write; name "
            "another file, or move that one away"
        )


def _ours(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as packed, packed.open(CORE) as core:
            return MARK.encode() in core.read(_CORE_LARGEST)
    except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return False
