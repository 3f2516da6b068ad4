"""The summary that a person reads in ten seconds."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kv_cache.core.units import AT_LEAST, GIB, MISSING
from kv_cache.report.identity import headline_text, identity_lines
from kv_cache.report.prediction import prediction_lines
from kv_cache.report.sizes import size_lines
from kv_cache.report.traced import trace_line

_OPS = ("read", "write")


def summary_text(document: Mapping[str, Any], result_path: str) -> str:
    """A few lines: whether to trust them and what to know first, what ran, how fast storage was,
    what users felt."""
    own = document["kv_cache"]
    lines = [*verdict_lines(own["passport"]), *(f"  ! {note}" for note in own["notes"]), ""]
    lines += [*_head(own), *identity_lines(own), *_asked(own), *headline_lines(own), ""]
    lines += [*tier_lines(own), "", *size_lines(own), *_requests(own)]
    lines += [*_users(own), *_before(own), *policy_lines(own)]
    lines += [*_validated(document), *_foreseen(own)]
    lines += ["", f"result  {result_path}"]
    return "\n".join(lines)


def _only_traced(own: Mapping[str, Any]) -> bool:
    """Whether the run was there to write the trace of its operations, and timed nothing."""
    return own["config"]["output"]["io_trace_log"] is not None


def _validated(document: Mapping[str, Any]) -> list[str]:
    """The hit rate beside that of a real system: what the reference judges."""
    found = document.get("validation")
    if found is None:
        return []
    row = found["comparison"]["cache_hit_rate"]
    mine = "nothing looked up" if row["benchmark"] is None else f"{100 * row['benchmark']:.1f} %"
    error = "" if row["error_pct"] is None else f"{row['error_pct']:.1f} % off, "
    within = "within" if found["passed"] else "NOT within"
    theirs = f"in the trace {100 * row['trace']:.1f} %"
    return [f"validated hit rate {mine}, {theirs}: {error}{within} 5 % (all rows: validation)"]


def _foreseen(own: Mapping[str, Any]) -> list[str]:
    """What the twin had said."""
    section = own.get("twin")
    return [] if section is None else ["", *prediction_lines(section)]


def _users(own: Mapping[str, Any]) -> list[str]:
    """What the autoscaler did and where it ended."""
    if own["autoscaler"] is None:
        return []
    rows = own["autoscaling"]
    settled = "settled" if own["autoscaler"]["settled"] else "not settled yet"
    first = own["config"]["run"]["num_users"]
    if not rows:
        return [f"users     {first}, {settled}: the autoscaler changed nothing"]
    path = " ".join(str(row["users"]) for row in rows[-8:])
    more = "" if len(rows) <= 8 else f"{len(rows) - 8} more, "
    last = rows[-1]
    head = f"users     {first} -> {last['users']}, {settled}, by {len(rows)} decisions"
    return [f"{head} ({more}{path})", f"          {last['reason']}"]


def policy_lines(own: Mapping[str, Any]) -> list[str]:
    """What policies did that are not the default; results of earlier versions tell nothing."""
    said = own.get("policies") or {}
    return [
        *_admission(said.get("admission")),
        *_written(said.get("write")),
        *_prefetched(said.get("prefetch")),
    ]


def _prefetched(said: Mapping[str, Any] | None) -> list[str]:
    if said is None or said["name"] == "none":
        return []
    ends = ("useful", "late", "wasted", "failed")
    told = ", ".join(f"{said[name]['blocks']} {name}" for name in ends)
    size = said["started"]["bytes"] / GIB
    head = f"prefetch  {said['name']}: {said['started']['blocks']} blocks, {size:.2f} GiB"
    return [f"{head}: {told}, {said['unread_blocks']} unread"]


def _written(said: Mapping[str, Any] | None) -> list[str]:
    if said is None or said["name"] == "back":
        return []
    blocks = {name: said[name]["blocks"] for name in ("written", "failed", "no_room")}
    rest = {
        "failed": blocks["failed"],
        "without room": blocks["no_room"],
        "dropped as the queue was full": said["dropped_blocks"],
    }
    told = "".join(f", {count} {how}" for how, count in rest.items() if count)
    size = said["written"]["bytes"] / GIB
    return [f"write     {said['name']}: {blocks['written']} blocks, {size:.2f} GiB{told}"]


def _admission(said: Mapping[str, Any] | None) -> list[str]:
    if said is None or said["name"] == "always":
        return []
    asked = {label: row for label, row in said["tiers"].items() if row["asked"]}
    found = []
    for label, row in asked.items():
        refused = {why: tally["blocks"] for why, tally in row["not_admitted"].items()}
        whole = row["admitted"]["blocks"] + sum(refused.values())
        told = "".join(f", {count} {why}" for why, count in refused.items())
        found.append(f"{label} took {row['admitted']['blocks']} of {whole}{told}")
    missed = said["not_stored"]["blocks"]
    rest = f"; {missed} new blocks not stored" if missed else ""
    return [f"admission {said['name']}: {'; '.join(found) or 'no tier asked'}{rest}"]


def _before(own: Mapping[str, Any]) -> list[str]:
    """What was done before anything was measured."""
    done = own["preconditioning"]
    if done is None:
        return []
    proof, rounds = done.get("proof"), done.get("rounds") or []
    steady = "too few to tell" if proof is None else "steady" if proof["steady"] else "NOT steady"
    fill = done.get("fill") or {"bytes": 0}
    return [
        f"before    filled {fill['bytes'] / GIB:.1f} GiB; {len(rounds)} rounds: {steady}"
        if rounds
        else f"before    filled {fill['bytes'] / GIB:.1f} GiB; no rounds"
    ]


def verdict_lines(passport: Mapping[str, Any]) -> list[str]:
    """Whether the number can be trusted, and every reason why not."""
    counts = Counter(rule["status"] for rule in passport["rules"])
    said = ", ".join(f"{n} {status}" for status, n in counts.items())
    first = f"verdict   {passport['verdict'].upper()} (rules: {said})"
    return [first, *(f"  ! {reason}" for reason in passport["reasons"])]


def _head(own: Mapping[str, Any]) -> list[str]:
    model, schedule = own["model"], own["schedule"]
    books = own["requests"]
    status = own["status"] if own["contains_performance"] else f"{own['status']}, virtual time"
    what = (
        f"kv-cache  {model['name']}, {own['semantics_preset']} semantics, seed {own['seed']}, "
        f"schedule {schedule['sha256'][:12]}"
    )
    done = (
        f"{status} after {own['window_s']:.1f} s: {books['completed_in_window']} requests "
        f"completed, {books['failed']} failed, {books['rejected']} rejected, "
        f"{books['unfinished']} unfinished"
    )
    return [what, done]


def headline_lines(own: Mapping[str, Any]) -> list[str]:
    """The number that the run is there for, and how sure it is; of trials and of virtual time
    without a word on other runs."""
    told = headline_text(own)
    if not told or _only_traced(own):
        return []
    run = own["config"]["run"]
    alone = own["contains_performance"] and run.get("trials") == 1 and "ranks" not in own
    return [f"headline  {told}", *(["          between runs: use --trials 3"] if alone else [])]


def _traced_tiers(own: Mapping[str, Any]) -> list[str]:
    """What was asked of each tier, with no word on how fast."""
    lines = [f"{'tier':<28}{'GiB':>9}{'ops':>9}"]
    for label, tier in own["tiers"].items():
        for op in _OPS:
            row, name = tier[op], label if op == "read" else ""
            lines.append(f"{name:<22}{op:<6}{row['bytes'] / GIB:>9.2f}{row['operations']:>9}")
    return lines


def _asked(own: Mapping[str, Any]) -> list[str]:
    """The trace, what it was taken for, and what of it was left out."""
    asked = own["workload"]
    return [trace_line(asked)] if asked.get("files") else []


def tier_lines(own: Mapping[str, Any]) -> list[str]:
    if _only_traced(own):
        return _traced_tiers(own)
    lines = [
        f"{'tier':<28}{'GiB/s':>7}{'GiB':>9}{'ops':>9}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}"
    ]
    for label, tier in own["tiers"].items():
        name = f"{label} ({tier['store']['engine']})"
        for op in _OPS:
            row = tier[op]
            latency = row["device_ms"] if label == "storage" else row["total_ms"]
            lines.append(
                f"{name if op == 'read' else '':<22}{op:<6}"
                f"{row['bytes_per_second'] / GIB:>7.2f} {row['bytes'] / GIB:>8.2f} "
                f"{row['operations']:>8} {ms_shown(latency, 'p50', 2):>9} "
                f"{ms_shown(latency, 'p95', 2):>9} {ms_shown(latency, 'p99', 2):>9}"
            )
    return lines


def ms_shown(latency: Mapping[str, Any], name: str, digits: int = 0) -> str:
    """A percentile in milliseconds: missing where too few values support it, marked where it is a
    lower bound."""
    ms, sign = latency[name], AT_LEAST if name in latency.get("at_least", ()) else ""
    return MISSING if ms is None else f"{sign}{ms:.{digits}f}"


def _metadata(own: Mapping[str, Any]) -> list[str]:
    """What names and files cost, beside the bytes: medians in the window."""
    if not own["contains_performance"]:
        return []
    here = [r for r in own["metadata"] if r["phase"] == "measure" and r["tier"] == "storage"]
    costs = [(f"{r['operation']} {r['step']}", r["ms"]["p50"] or 0) for r in here]
    costs += [
        (row["engine"], row["total_ms"]["p50"] or 0)
        for row in own["operations"]
        if (row["phase"], row["tier"], row["operation"]) == ("measure", "storage", "delete")
        and row["operations"]
    ]
    most = sorted((cost for cost in costs if cost[1]), key=lambda cost: -cost[1])[:4]
    told = ", ".join(f"{name} {ms:.2f} ms" for name, ms in most)
    return [f"metadata  {told} (p50)"] if told else []


def _offered(reuse: Mapping[str, Any]) -> str:
    """Beside what was found: what a cache without limits would have found."""
    if reuse["offered_token_ratio"] is None:
        return ""
    offered, achieved = 100 * reuse["offered_token_ratio"], 100 * reuse["achieved_token_ratio"]
    least = "" if reuse["offered_is_exact"] else "at least "
    return f"; {achieved:.1f} % of all tokens, of {least}{offered:.1f} % on offer"


def _retrieval(own: Mapping[str, Any]) -> list[str]:
    """What was retrieved, of what."""
    made, reuse = own["workload"], own["reuse"]
    if "rag_documents" not in made:
        return []
    return [
        (
            f"rag       {reuse['retrieved_requests']} retrievals, {reuse['retrieved_hits']} of "
            f"{reuse['retrieved_looked_up']} blocks were hits "
            f"({100 * reuse['retrieved_hit_ratio']:.1f} %, reuse {made['rag_reuse']}), "
            f"{reuse['retrieved_loaded_bytes'] / GIB:.2f} GiB loaded"
        ),
        (
            f"          {made['rag_ingested_documents']} of {made['rag_documents']} documents "
            f"ingested before, {made['rag_ingested_bytes'] / GIB:.2f} GiB"
        ),
    ]


def _requests(own: Mapping[str, Any]) -> list[str]:
    done, reuse = own["measured"]["all"], own["reuse"]
    seconds = own["window_s"] or float("inf")
    ttft, response = done["ttft_ms"], done["response_ms"]
    check, books = own["verification"], own["reconciliation"]
    felt = (
        f"requests  {done['completed'] / seconds:.2f}/s, {done['output_tokens'] / seconds:,.0f} "
        f"tokens/s; TTFT p50 {ms_shown(ttft, 'p50')} p95 {ms_shown(ttft, 'p95')} ms; "
        f"response p50 {ms_shown(response, 'p50')} p95 {ms_shown(response, 'p95')} ms"
    )
    found = (
        f"reuse     {reuse['hits']} of {reuse['looked_up']} blocks looked up were hits "
        f"({100 * reuse['reuse_hit_ratio']:.1f} %)" + _offered(reuse)
    )
    lines = [*([] if _only_traced(own) else [felt]), found, *_retrieval(own)]
    if check["mode"] != "none":
        failed = sum(
            row["count"]
            for row in own["failed_operations"]
            if row["reason"] == "verification-failed"
        )
        lines.append(
            f"verified  {check['objects']} objects, {check['bytes'] / GIB:.2f} GiB by "
            f"{check['mode']}: {failed} wrong"
        )
    if books is not None:
        parts = []
        for op in _OPS:
            share = books[op]["process_to_claimed"]
            if share is not None and books[op]["claimed_bytes"]:
                parts.append(f"{op} {100 * share:.2f} %")
        carried = [
            f"{op} {100 * share:.2f} %"
            for op in _OPS
            if (share := books[op].get("network_to_claimed")) is not None
            and books[op]["claimed_bytes"]
        ]
        if carried:
            lines.append(f"network   carried of the storage bytes claimed: {', '.join(carried)}")
        if parts:
            lines.append(f"kernel    counted of the storage bytes claimed: {', '.join(parts)}")
    lines += _metadata(own)
    return lines
