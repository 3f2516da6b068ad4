"""What was run, and on what drive, in a line each: for the summary and the reports."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from kv_cache.config.passport import THRESHOLDS, PassportConfig
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.format import figures
from kv_cache.core.text import printable
from kv_cache.core.units import MISSING, human_bytes
from kv_cache.result.metrics import METRICS, Json
from kv_cache.result.paths import list_at, number_at, value_at
from kv_cache.result.published import TraceNotes
from kv_cache.result.run import converted
from kv_cache.view import units


def plain(text: str) -> str:
    """Text of a user on one line, such as a terminal can be shown."""
    return printable(text, instead=" ")


def run_text(section: Json) -> str:
    """Mode, who asked, and what else changes what storage sees."""
    workload = value_at(section, "workload")
    mode = value_at(section, "config.run.mode")
    parts = [*([] if mode is None else [f"{mode} mode"]), *_who(section)]
    if value_at(workload, "multi_turn") is not None:
        parts.append(f"multi-turn {'on' if value_at(workload, 'multi_turn') else 'off'}")
    if isinstance(workload, Mapping) and workload:
        parts.append(f"RAG {'on' if 'rag_documents' in workload else 'off'}")
    return ", ".join(parts)


def _who(section: Json) -> Iterator[str]:
    """The source of requests, and how many ask or how often."""
    source, users = value_at(section, "workload.source"), number_at(section, "workload.users")
    rate = number_at(section, "workload.request_rate_per_s")
    count = MISSING if users is None else f"{users:.0f}"
    if source == "synthetic-users":
        autoscaled = value_at(section, "config.autoscaler.enabled") is True
        yield f"{count} synthetic users{' at first, autoscaled' if autoscaled else ''}"
        if rate is None:
            yield f"{value_at(section, 'workload.loop')} loop"
    elif source == "sessions":
        yield f"sessions of a trace, {count} at a time"
    elif source == "trace":
        speedup = number_at(section, "workload.speedup")
        pace = f" at {speedup:g} times its speed" if speedup not in (None, 0.0, 1.0) else ""
        yield f"requests of a trace{pace if rate is None else ''}"
    elif source is not None:
        yield str(source)
    if rate is not None:
        yield f"{rate:g} requests/s ({value_at(section, 'workload.arrival_process')})"


def tiers_text(section: Json) -> str:
    """The tiers with their sizes, the fastest first."""
    tiers = value_at(section, "tiers")
    return ", ".join(
        f"{label} {_size(value_at(row, 'capacity_bytes'), 'without a limit')}"
        for label, row in (tiers.items() if isinstance(tiers, Mapping) else ())
    )


def _size(nbytes: Any, otherwise: str) -> str:
    return human_bytes(nbytes) if type(nbytes) is int else otherwise


def _is_virtual(section: Json) -> bool:
    return bool(value_at(section, "driver") == "virtual-time")


def drive_texts(section: Json) -> list[str]:
    """What each directory lies on. Of a bucket its server; virtual time touches none."""
    if _is_virtual(section):
        return []
    drives = value_at(section, "environment.drives")
    rows = drives if isinstance(drives, list) else [value_at(section, "environment")]  # of ranks
    return [text for row in rows if (text := drive_text(row))]


def drive_text(row: Any) -> str:
    """File system, mount point, and each disk with model, size and firmware."""
    kind, point = value_at(row, "filesystem.type"), value_at(row, "filesystem.mount_point")
    if value_at(row, "object_store") is not None:
        bucket, endpoint, server = (
            value_at(row, f"object_store.{key}") for key in ("bucket", "endpoint", "server")
        )
        return f"bucket {bucket} of {endpoint} (server {server or MISSING})"
    device, disks = value_at(row, "device"), value_at(row, "disks")
    some = disks if isinstance(disks, list) and disks else [device]
    texts = [_disk(disk) for disk in some if value_at(disk, "name") is not None]
    name = value_at(device, "name")
    through = (
        f"{name} over " if name and [value_at(disk, "name") for disk in some] != [name] else ""
    )
    where = [] if kind is None else [f"{kind} at {point}" if point else str(kind)]
    return ", ".join([*where, *([f"on {through}{' and '.join(texts)}"] if texts else [])])


def _disk(disk: Any) -> str:
    model, firmware = value_at(disk, "model") or MISSING, value_at(disk, "firmware") or MISSING
    size = _size(value_at(disk, "size_bytes"), MISSING)
    return f"{value_at(disk, 'name')} (model {model}, {size}, firmware {firmware})"


def headline_text(section: Json) -> str:
    """The headline with its interval; empty where the document has none."""
    metric = METRICS.get(str(value_at(section, "headline.metric")))
    rate = number_at(section, "headline.bytes_per_second")
    if metric is None or rate is None:
        return ""
    shown = f"{metric.label} {metric.shown(rate)} {metric.shown_unit} ({interval_text(section)})"
    before, after, at_s = (
        number_at(section, f"headline.change.{name}")
        for name in ("bytes_per_second_before", "bytes_per_second_after", "at_s")
    )
    if at_s is None:
        return shown
    change = f"{metric.shown(before)} before and {metric.shown(after)} after {figures(at_s)} s"
    return f"{shown}, which changed: {change}"


def interval_text(section: Json) -> str:
    """From where to where the headline may lie within this run, or why that is not known."""
    metric = METRICS[str(value_at(section, "headline.metric"))]
    low, high, confidence = (
        number_at(section, f"headline.within_run.{end}") for end in ("low", "high", "confidence")
    )
    if low is None or high is None or confidence is None:
        return f"no interval: {value_at(section, 'headline.why_none')}"
    return f"{metric.shown(low)} to {metric.shown(high)} within this run, {100 * confidence:.0f} %"


def slos_set_by_user(section: Json) -> bool:
    """Whether the user set the classes' targets, and did not leave those of the reference."""
    profiles = value_at(section, "config.qos_profiles")
    return profiles is not None and profiles != to_mapping(Config())["qos_profiles"]


def label_of(section: Json) -> str:
    """The name that the user gave the run; empty without one."""
    return str(value_at(section, "config.output.label") or "")


def note_of(section: Json) -> str:
    """The user's remark about the run; empty without one."""
    return str(value_at(section, "config.output.note") or "")


def disk_models(environment: Any) -> list[str]:
    """Return the models of all disks, or their names where a model is not known."""
    disks = [
        value_at(disk, "model") or value_at(disk, "name")
        for row in list_at(environment, "drives")
        for disk in list_at(row, "disks")
    ]
    return [str(disk) for disk in dict.fromkeys(disks) if disk]


def doubts(section: Json, reasons: Sequence[str]) -> list[str]:
    """What a verdict rests on: its reasons, and the thresholds that the user has moved."""
    chosen, usual = value_at(section, "config.passport"), to_mapping(PassportConfig())
    if not isinstance(chosen, Mapping):
        return list(reasons)
    changed = {
        name: [chosen[name], usual[name]]
        for name in THRESHOLDS
        if name != "measurement"  # of which the notes speak
        and isinstance(chosen.get(name), int | float)
        and chosen[name] != usual[name]
    }
    return [*reasons, *moved_thresholds(changed)]


def moved_thresholds(changed: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a sentence on thresholds that are not at their default, each `[value, default]`."""
    moved = ", ".join(
        f"{name} is {_threshold(value)} ({_threshold(default)} by default)"
        for name, (value, default) in changed.items()
    )
    return [f"thresholds of the verdict were moved: {moved}"] if moved else []


def _threshold(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else figures(value)


def origin_texts(section: Json) -> list[str]:
    """On which drives, when, and by which version, in a few words each."""
    version = value_at(section, "program_version")
    return [
        *([] if _is_virtual(section) else disk_models(value_at(section, "environment"))),
        *([str(started)[:10]] if (started := value_at(section, "started_utc")) else []),
        *([f"kv-cache {version}"] if version else []),
    ]


def identity_facts(section: Json) -> list[tuple[str, str]]:
    """Label, note, what ran on which model and drives, and which trace was asked."""
    each = "each rank: " if "ranks" in section else ""
    model = value_at(section, "model.name") or "unknown model"
    schedule = str(value_at(section, "schedule.sha256") or "")[:12]
    rows = [
        ("label", plain(label_of(section))),
        ("note", plain(note_of(section))),
        (
            "model",
            f"{plain(str(model))}, {value_at(section, 'semantics_preset') or 'unknown'} semantics, "
            f"seed {value_at(section, 'seed')}" + (f", schedule {schedule}" if schedule else ""),
        ),
        ("run", f"{each}{what}" if (what := run_text(section)) else ""),
        ("trace", _trace(section)),
        ("tiers", tiers_text(section)),
    ]
    if not _is_virtual(section):
        rows += [("drive", text) for text in drive_texts(section)]
        rows.append(
            ("data path", plain(str(value_at(section, "tiers.storage.store.data_path") or "")))
        )
        rows.append(("machine", machine_text(section)))
    return [(name, text) for name, text in rows if text]


def _trace(section: Json) -> str:
    facts = value_at(section, "workload")
    if not isinstance(facts, Mapping):
        return ""
    return trace_text(converted(facts, TraceNotes, "workload"))


def machine_text(section: Json) -> str:
    """Host, processor and memory of one machine."""
    memory = number_at(section, "environment.memory.total_bytes")
    cores = number_at(section, "environment.cpu.usable_cores")
    parts = [
        value_at(section, "environment.hostname"),
        value_at(section, "environment.cpu.model"),
        None if cores is None else f"{figures(cores)} cores",
        None if memory is None else f"{units.GIBIBYTES.measured(memory)} of memory",
    ]
    return ", ".join(plain(str(part)) for part in parts if part)


# --- the trace -------------------------------------------------------------------------------

_ORIGINS = {"format": "as its format says", "detected": "detected", "option": "as asked for"}
_NOTES = {
    "failed": "failed requests left out",
    "backward": "rows whose time goes back",
    "unanswered": "unanswered turns left out",
    "too_long": "turns that are too long left out",
    "no_blocks": "requests without blocks left out",
    "left_out": "operations that are no access left out",
}
_LONGEST_NAME = 57
_DIGEST = 12


def trace_text(trace: TraceNotes) -> str:
    """The trace with its rows; empty for synthetic users."""
    if not trace.files:
        return ""
    several = len(trace.files) > 1
    name = f"{len(trace.files)} files" if several else PurePath(trace.files[0]).name
    rows = trace.rows or 0
    taken = rows if trace.asked_rows is None else trace.asked_rows
    texts = [f"{rows:,} rows" if taken == rows else f"{taken:,} of {rows:,} rows"]
    if trace.time_unit is not None:
        origin = _ORIGINS.get(str(trace.time_unit_from), trace.time_unit_from)
        texts.append(f"times in {trace.time_unit} ({origin})")
    if trace.skipped_bad_rows:
        texts.append(f"{trace.skipped_bad_rows:,} bad rows left out")
    if trace.includes_failed_rows:
        texts.append("failed requests included")
    texts += [f"{count:,} {_NOTES.get(note, note)}" for note, count in trace.notes.items()]
    if trace.unidentified_rows:
        texts.append(f"{trace.unidentified_rows:,} of a content that no other row can share")
    if trace.sha256 is not None:
        texts.append(f"sha256 {trace.sha256[:_DIGEST]}")
    shown = printable(name, longest=_LONGEST_NAME)
    return f"{shown} ({trace.format or 'unknown format'}): {', '.join(texts)}"
