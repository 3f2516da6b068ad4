"""V12: whether the whole run is in the result."""

from collections.abc import Iterator

from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, suspect, well
from kv_cache.metrics.rules.readings import percent

_FEW = 5  # requests by which a queue that is served may differ between two instants
_NO_END_MS, _NO_END_TIMES = 1000.0, 10.0  # an operation without an end: of ms, and of p99


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
        yield invalid(
            "the measured window never began: the run was over before its warm-up; raise "
            "--max-requests, or lower --warmup"
        )
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
    """What was rejected, what an open loop asks beyond what is served, and operations without an
    end.

    The users of a closed loop wait at the end of a window as they do at its beginning, however many
    they are: what is in flight counts in percentiles with what it has waited."""
    submitted, rejected = e.numbers("completeness", "submitted", "rejected")
    if rejected and submitted and rejected / submitted > t.most_rejected_share:
        yield suspect(
            f"{percent(rejected / submitted)} of {submitted:.0f} requests were rejected (at most "
            f"{percent(t.most_rejected_share)} is wanted); lower the request rate, or raise "
            "schedule.queue_limit"
        )
    grown, arrived = e.numbers("completeness", "backlog_growth", "asked")
    if grown and arrived and grown >= _FEW and grown / arrived > t.most_unfinished_share:
        yield suspect(
            f"{grown:.0f} more requests waited at the end of the window than at its beginning, of "
            f"{arrived:.0f} that were asked in it (at most {percent(t.most_unfinished_share)} is "
            "wanted): the rate is more than is served, and how long answers take depends on how "
            "long the run is; lower the request rate"
        )
    oldest, tail = e.number("completeness.oldest_operation_ms"), _slowest_tail(e)
    if oldest is not None and tail and oldest > max(_NO_END_MS, _NO_END_TIMES * tail):
        yield suspect(
            f"an operation on storage had not ended {oldest / 1000:.1f} s after it began, where "
            f"p99 is {tail:.1f} ms: its time is not in the numbers; run again, and look at the "
            "device"
        )


def _slowest_tail(e: Evidence) -> float | None:
    tails = [e.number(f"client.storage_{kind}_p99_ms") for kind in ("read", "write")]
    return max((tail for tail in tails if tail is not None), default=None)
