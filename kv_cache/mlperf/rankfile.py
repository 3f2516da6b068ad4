"""Reads one rank's result file of a tree: what the rules use of it, or why it does not count.

A file counts only as its run wrote it: whole, by this program, with a chain that holds and numbers
that follow from each other. Of everything else one flaw is reported, by name.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.files.reading import result_bytes, too_deep
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.result.chain import SECTION, check, fingerprint
from kv_cache.result.counted import RankFacts
from kv_cache.result.derive import SCHEMA
from kv_cache.result.paths import flat, number_at
from kv_cache.result.run import CountedRun, MisshapenError, read_run, times, unix_s
from kv_cache.result.sections import KINDS
from kv_cache.result.verify import judged_again, recheck

Json = Mapping[str, Any]

MISSING = "missing"
DUPLICATE = "duplicate"
TRUNCATED = "truncated"
FOREIGN = "foreign"
TAMPERED = "tampered"
UNFINISHED = "unfinished"
SCHEMAS = "mixed schemas"
CONFIGS = "different configs"
UNEXPECTED = "unexpected"
CLIENTS = "different jobs"
CPU_ONLY = "no storage"


class Flaw(NamedTuple):
    """Why an option is invalid. `option` is None if it is about the whole sequence."""

    kind: str
    option: int | None
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path} {self.message}"


class Spot(NamedTuple):
    """The place of a result in the sequence."""

    option: int
    trial: int
    rank: int

    def __str__(self) -> str:
        return f"option_{self.option}/trial_{self.trial}/rank_{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank's figures; None for those that the document does not have."""

    spot: Spot
    path: str  # from the sequence's directory
    figures: Mapping[str, float | None]  # by the names of `READ`
    storage_entries: int
    histograms: Mapping[str, Json] = field(repr=False)  # by the names of `HISTOGRAMS`
    config: Mapping[str, Any] = field(repr=False)  # by dotted path
    environment: Json = field(repr=False)
    mpi: RankFacts  # the rank that it says it is of
    program_version: str
    started_utc: str
    began_s: float | None  # when its window began, by its host's clock, in seconds since 1970
    window_s: float
    seed: int
    verdict: str
    reasons: tuple[str, ...]
    not_submittable: tuple[str, ...]
    storage: Json = field(repr=False)  # the store of the storage tier
    fsync: str
    fingerprint: str
    times_sha256: str | None  # of how long each operation of storage took

    @property
    def started_s(self) -> float | None:
        """When its run began, by its host's clock, in seconds since 1970."""
        return unix_s(self.started_utc)

    @property
    def ended_s(self) -> float | None:
        """When its window ended, likewise."""
        return None if self.began_s is None else self.began_s + self.window_s

    @property
    def hostname(self) -> str:
        return str(self.environment.get("hostname"))


READ: Mapping[str, str] = {
    "read_bandwidth_gbps": "cache_stats.tier_storage_read_bandwidth_gbps",
    "write_bandwidth_gbps": "cache_stats.tier_storage_write_bandwidth_gbps",
    "storage_throughput_tokens_per_sec": "storage_throughput_tokens_per_sec",
    "avg_throughput_tokens_per_sec": "avg_throughput_tokens_per_sec",
    "device_read_p95_ms": "cache_stats.storage_read_device_p95_ms",
    "device_write_p95_ms": "cache_stats.storage_write_device_p95_ms",
    "p95_latency_ms": "storage_io_latency_ms.p95",
}
"""What the rules and launchers read, below `summary`. `_gbps` is GiB/s, as they call it. Device
latencies are absent if there are no samples."""

HISTOGRAMS = ("device_read", "device_write", "total_read", "total_write", "response")
"""Of storage operations in the window, and of whole requests, in ns."""


def read_rank(spot: Spot, path: Path, name: str) -> RankResult | Flaw:
    """Return the result in a file, or what is wrong with it."""

    def flaw(kind: str, message: str) -> Flaw:
        return Flaw(kind, spot.option, name, message)

    try:
        raw = result_bytes(path)
    except UsageError as error:
        return flaw(MISSING, f"cannot be read ({error})")
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        what = "is empty" if not raw.strip() else "is cut short, or not JSON"
        return flaw(TRUNCATED, f"{what}; run the sequence again")
    section = document.get(SECTION) if isinstance(document, Mapping) else None
    if not isinstance(section, Mapping):
        return flaw(
            FOREIGN,
            f"is not a result of this program: it has no section {SECTION}, and so no evidence "
            "and no histograms; nothing is claimed of results that cannot be checked",
        )
    if section.get("schema") != SCHEMA:
        return flaw(
            SCHEMAS,
            f"is of schema {str(section.get('schema'))[:40]!r}, and this program knows {SCHEMA}; "
            "use one version for the whole sequence, and that version to look at it",
        )
    if too_deep(document):
        return flaw(TAMPERED, "is nested deeper than any result is")
    changed = next(_changes(document, raw), None)
    if changed is not None:
        return flaw(TAMPERED, f"is not as its run left it: {changed}")
    unfinished = _unfinished(document, section)
    if unfinished is not None:
        return flaw(UNFINISHED, unfinished)
    try:
        return _result(spot, name, document)
    except MisshapenError as error:
        return flaw(TAMPERED, f"lacks what every result has ({error})")


def _changes(document: Json, raw: bytes) -> Iterator[str]:
    for change in check(document, {}):
        yield f"{change.link} {change.message}"
    if as_json(document) != raw:  # a key twice, or spelled by another program
        yield "it is not spelled as it was written"
    yield from recheck(document)


def _unfinished(document: Json, section: Json) -> str | None:
    if section.get("driver") != "real-io":
        return f"was made by {str(section.get('driver'))[:20]}, which moves no bytes"
    if section.get("status") != "finished":
        return f"is of a run that was {section.get('status')}; run the sequence again"
    if not isinstance(document.get("summary"), Mapping):
        return "has no summary: no request completed in its window"
    return None


def _result(spot: Spot, name: str, document: Json) -> RankResult:
    """Return what is used of a document that follows from its counts. Raises MisshapenError."""
    run, verdict, summary = read_run(document), judged_again(document), document["summary"]
    facts, histograms = run.facts, _histograms(run)
    storage = facts.tiers.get("storage")
    return RankResult(
        spot=spot,
        path=name,
        figures={key: number_at(summary, where) for key, where in READ.items()},
        storage_entries=summary["cache_stats"]["storage_entries"],
        histograms=histograms,
        times_sha256=_times_sha256(histograms),
        config=dict(flat(facts.config)),
        environment=facts.environment,
        mpi=facts.rank,
        program_version=facts.program_version,
        started_utc=facts.started_utc or "",
        began_s=run.wall_begin_s,
        window_s=run.window_s,
        seed=facts.seed,
        verdict=verdict.verdict,
        reasons=tuple(str(finding) for finding in verdict.reasons),
        not_submittable=tuple(facts.not_submittable),
        storage={} if storage is None else storage.store,
        fsync=str(facts.semantics.get("fsync")),
        fingerprint=fingerprint(document) or "",
    )


def _times_sha256(histograms: Mapping[str, Json]) -> str | None:
    """Return what no two runs have in common: the digest of how long storage took; None where it
    did nothing."""
    both = {name: histograms[name] for name in (f"device_{kind}" for kind in KINDS)}
    if not any(histogram["count"] for histogram in both.values()):
        return None
    return sha256(as_json(both)).hexdigest()


def _histograms(run: CountedRun) -> dict[str, Json]:
    """Return them as JSON, in which empty buckets take no room: a tree may have thousands of
    ranks."""
    return {
        **{
            f"{what}_{kind}": times(run.ledger.window("storage", kind), what).to_json()
            for what in ("device", "total")
            for kind in KINDS
        },
        "response": run.facts.measured.together.histogram_response.to_json(),
    }


def pooled(results: Iterable[RankResult], name: str) -> Histogram:
    """Return all samples of these ranks as one histogram."""
    return merged(Histogram.from_json(result.histograms[name]) for result in results)
