"""V12: whether the whole run is in the result."""

from collections.abc import Iterator

from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, suspect, well
from kv_cache.metrics.rules.readings import percent


def completeness(e: Evidence, t: Thresholds) -> Iterator[Look]:
    yield from _all_known(e)
    yield from _ended_early(e)
    yield from _failures(e)
    yield from _left_over(e, t)
    completed = e.number("completeness.completed") or 0
    yield well(f"the run finished, {completed:.0f} requests completed and nothing failed")


def _all_known(e: Evidence) -> Iterator[Look]:
    counts = ("window_s", "completed", "submitted", "failed_requests", "rejected", "unfinished",
              "failed_operations")  # fmt: skip
    missing = [name for name in counts if e.number(f"completeness.{name}") is None]
    if e.text("completeness.status") is None:
        missing.insert(0, "status")
    if missing:
        yield suspect(f"whether the run is complete is not known ({', '.join(missing)}); run again")


def _ended_early(e: Evidence) -> Iterator[Look]:
    status, by = e.text("completeness.status"), e.text("completeness.interrupted")
    if status is not None and status != "finished":
        yield invalid(
            f"the run was {status}{f' by {by}' if by else ''}, so a part of it is missing; let it "
            "run to its end"
        )
    if e.number("completeness.window_s") == 0:
        yield invalid("the measured window never began; raise --duration")
    elif e.number("completeness.completed") == 0:
        yield invalid("no request completed in the window; raise --duration")


def _failures(e: Evidence) -> Iterator[Look]:
    requests, operations, storage = e.numbers(
        "completeness", "failed_requests", "failed_operations", "storage_failed_operations"
    )
    if requests:
        yield invalid(
            f"{requests:.0f} requests failed; requests.errors says why: objects that fit nowhere "
            "want larger tiers, the rest a device without errors"
        )
    if operations or storage:
        on_storage = "" if storage is None else f", {storage:.0f} of them on storage"
        yield invalid(
            f"{max(operations or 0, storage or 0):.0f} operations failed{on_storage}; "
            "failed_operations says why"
        )
    records = e.text("completeness.records_error")
    if records:
        yield invalid(f"the records are incomplete ({records}); make room and run again")


def _left_over(e: Evidence, t: Thresholds) -> Iterator[Look]:
    submitted = e.number("completeness.submitted")
    longer = "the long ones are missing; raise --duration or ask with fewer users"
    slower = "lower the request rate, or raise schedule.queue_limit"
    for name, limit, way in (
        ("unfinished", t.most_unfinished_share, longer),
        ("rejected", t.most_rejected_share, slower),
    ):
        count = e.number(f"completeness.{name}")
        if count is not None and submitted and count / submitted > limit:
            yield suspect(
                f"{percent(count / submitted)} of {submitted:.0f} requests were {name} (at "
                f"most {percent(limit)} is wanted); {way}"
            )
