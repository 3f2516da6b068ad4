"""A run at a glance: what requests felt, what was found, verified and counted by the kernel."""

from collections.abc import Iterator

from kv_cache.core.format import figures
from kv_cache.core.kinds import OpKind, Phase
from kv_cache.core.units import human_bytes
from kv_cache.result.paths import number_at, value_at
from kv_cache.result.published import PublishedRun
from kv_cache.view import units
from kv_cache.view.latency import ms_text
from kv_cache.view.moves import SIZE_COLUMNS, object_sizes, objects_text

Fact = tuple[str, str]
_SIDES = ("read", "write")


def counted_facts(run: PublishedRun) -> Iterator[Fact]:
    """Name and text of each line."""
    yield from _objects(run)
    yield from _requests(run)
    yield from _reuse(run)
    yield from _retrieval(run)
    yield from _verified(run)
    yield from _kernel(run)
    yield from _metadata(run)
    yield from _users(run)


def _objects(run: PublishedRun) -> Iterator[Fact]:
    for kind, sizes in object_sizes(run).items():
        shown = ", ".join(
            f"{name} {human_bytes(size)}"
            for name in SIZE_COLUMNS
            if name != "p50" and (size := getattr(sizes, name)) is not None
        )
        yield f"objects {kind}", f"{sizes.objects:,}: {shown}"
    if about := objects_text(run):
        yield "objects", about


def _requests(run: PublishedRun) -> Iterator[Fact]:
    done = run.measured.get("all")
    if done is None or value_at(run.config, "output.io_trace_log") is not None:
        return
    seconds = run.window_s or float("inf")
    rates = [
        amount / seconds if summed is None else summed
        for amount, summed in (
            (done.completed, done.completed_per_second),
            (done.output_tokens, done.output_tokens_per_second),
        )
    ]
    ttft, response = done.ttft_ms, done.response_ms
    text = f"{figures(rates[0])}/s, {figures(rates[1])} tokens/s; "
    text += f"TTFT p50 {ms_text(ttft, 'p50')} p95 {ms_text(ttft, 'p95')} ms; "
    text += f"response p50 {ms_text(response, 'p50')} p95 {ms_text(response, 'p95')} ms"
    yield "requests", text


def _reuse(run: PublishedRun) -> Iterator[Fact]:
    """What was found, and what a cache without limits would have found."""
    reuse = run.reuse
    if reuse is None or reuse.looked_up is None or reuse.hits is None:
        return
    text = f"{reuse.hits:,} of {reuse.looked_up:,} blocks looked up were hits"
    text += f" ({units.PERCENT.measured(reuse.reuse_hit_ratio)})"
    if reuse.offered_token_ratio is not None:
        least = "" if reuse.offered_is_exact else "at least "
        text += f"; {units.PERCENT.measured(reuse.achieved_token_ratio)} of all tokens, of "
        text += f"{least}{units.PERCENT.measured(reuse.offered_token_ratio)} on offer"
    yield "reuse", text


def _retrieval(run: PublishedRun) -> Iterator[Fact]:
    rag, reuse = run.workload, run.reuse
    if rag is None or rag.rag_documents is None or reuse is None:
        return
    loaded = units.GIBIBYTES.measured(reuse.retrieved_loaded_bytes or 0)
    ingested = units.GIBIBYTES.measured(rag.rag_ingested_bytes or 0)
    text = f"{reuse.retrieved_requests} retrievals, {reuse.retrieved_hits} of "
    text += f"{reuse.retrieved_looked_up} blocks were hits "
    text += f"({units.PERCENT.measured(reuse.retrieved_hit_ratio)}, reuse {rag.rag_reuse}), "
    text += f"{loaded} loaded; {rag.rag_ingested_documents} of {rag.rag_documents} documents "
    yield "rag", f"{text}ingested before, {ingested}"


def _verified(run: PublishedRun) -> Iterator[Fact]:
    check = run.verification
    if check is None or check.mode == "none":
        return
    wrong = sum(row.count for row in run.failed_operations if row.reason == "verification-failed")
    size = units.GIBIBYTES.measured(check.bytes)
    yield "verified", f"{check.objects:,} objects, {size} by {check.mode}: {wrong} wrong"


def _kernel(run: PublishedRun) -> Iterator[Fact]:
    books = run.reconciliation
    if books is None:
        return
    for name, text, share in (
        ("network", "carried", "network_to_claimed"),
        ("kernel", "counted", "process_to_claimed"),
    ):
        parts = [
            f"{kind} {units.PERCENT.measured(value)}"
            for kind in _SIDES
            if (value := getattr(getattr(books, kind), share)) is not None
            and getattr(books, kind).claimed_bytes
        ]
        if parts:
            beside = _records_beside(run) if name == "kernel" else ""
            yield name, f"{text} of the storage bytes claimed: {', '.join(parts)}{beside}"


def _records_beside(run: PublishedRun) -> str:
    """Say which of the bytes that the kernel counted as written are those of files of records."""
    wrote = number_at(run.passport.evidence, "ledger.other_process_write_bytes")
    claimed = run.reconciliation.write.claimed_bytes if run.reconciliation else 0
    if not wrote or not claimed:
        return ""
    share = units.PERCENT.measured(wrote / claimed)
    return f"; beside them this program wrote {human_bytes(wrote)} of records ({share})"


def _metadata(run: PublishedRun) -> Iterator[Fact]:
    """What names and files cost, beside the bytes: medians in the window."""
    if not run.contains_performance:
        return
    costs = [
        (f"{row.operation} {row.step}", row.ms.p50 or 0.0)
        for row in run.metadata
        if (row.phase, row.tier) == (Phase.MEASURE, "storage")
    ]
    costs += [
        (row.engine, (row.histogram_total.percentiles([50])[0] or 0.0) / 1e6)
        for row in run.operations
        if (row.phase, row.tier, row.operation) == (Phase.MEASURE, "storage", OpKind.DELETE)
        and row.operations
    ]
    most = sorted((cost for cost in costs if cost[1]), key=lambda cost: -cost[1])[:4]
    if most:
        yield "metadata", ", ".join(f"{name} {figures(ms)} ms" for name, ms in most) + " (p50)"


_MOST_DECISIONS = 8


def _users(run: PublishedRun) -> Iterator[Fact]:
    """What the autoscaler did and where it ended."""
    if run.autoscaler is None:
        return
    rows = run.autoscaling
    settled = "settled" if run.autoscaler.settled else "not settled yet"
    first = figures(number_at(run.config, "run.num_users"))
    if not rows:
        yield "users", f"{first}, {settled}: the autoscaler changed nothing"
        return
    path = " ".join(figures(row.users) for row in rows[-_MOST_DECISIONS:])
    more = max(0, len(rows) - _MOST_DECISIONS)
    path = f"{more} more, {path}" if more else path
    text = f"{first} -> {figures(rows[-1].users)}, {settled}, by {len(rows)} decisions ({path}): "
    yield "users", f"{text}{rows[-1].reason}"
