"""What was on offer for reuse in the measured window, and what was found."""

from collections.abc import Iterator

from kv_cache.result.published import PublishedRun, ReuseFacts
from kv_cache.view import units
from kv_cache.view.parts import Cell, FactList, Part, Remarks, ShownColumn, Table

_COUNTED = {
    "blocks": "blocks of all requests",
    "looked_up": "blocks looked up",
    "hits": "of these, found",
    "offered_blocks": "blocks asked for before, by any request",
    "context_tokens": "tokens of all contexts",
    "hit_tokens": "tokens found",
    "offered_tokens": "tokens on offer",
    "loaded_bytes": "loaded",
    "stored_bytes": "stored by the requests themselves, not behind them",
    "retrieved_requests": "requests with retrieval (RAG)",
}
_KINDS = {
    "": "all that was looked up",
    "history_": "earlier turns of the same conversation",
    "shared_": "shared prompts",
    "retrieved_": "retrieved documents (RAG)",
    "decode_": "loads while decoding",
}


def reuse_parts(run: PublishedRun) -> list[Part]:
    """Nothing if no block was asked for."""
    reuse = run.reuse
    if reuse is None or not (reuse.blocks or reuse.looked_up or reuse.decode_looked_up):
        return []
    return [*_offered(reuse), *_hits(reuse), _counts(reuse)]


def _offered(reuse: ReuseFacts) -> Iterator[Part]:
    """What a cache without limits would have found, and what this one did."""
    rows: list[list[Cell]] = [
        [f"{unit}s {text}", share]
        for unit in ("token", "block")
        for side, text in (("offered", "on offer"), ("achieved", "found"))
        if (share := getattr(reuse, f"{side}_{unit}_ratio")) is not None
    ]
    if not rows:
        text = "What was on offer is not known: everything was stored before the run, or the result"
        yield Remarks(texts=[f"{text} is of an earlier version."])
        return
    exact = reuse.offered_is_exact is not False
    yield Table(
        title="Offered and achieved, of everything asked for",
        columns=[ShownColumn(""), ShownColumn("share", units.PERCENT, bar=True)],
        rows=rows,
        caption="On offer is what a cache without limits would have found."
        if exact
        else "On offer is at least this: more different blocks were asked for than are remembered.",
    )


def _hits(reuse: ReuseFacts) -> Iterator[Part]:
    rows = [
        (text, hits, looked_up)
        for prefix, text in _KINDS.items()
        if (looked_up := getattr(reuse, f"{prefix}looked_up"))
        and (hits := getattr(reuse, f"{prefix}hits")) is not None
    ]
    if not rows:
        yield Remarks(texts=["No block was looked up in the measured window."])
        return
    yield Table.of(
        rows,
        {
            ShownColumn("blocks of"): lambda row: row[0],
            ShownColumn("hit ratio", units.PERCENT, bar=True): lambda row: row[1] / row[2],
            ShownColumn("hits", units.COUNT): lambda row: row[1],
            ShownColumn("looked up", units.COUNT): lambda row: row[2],
        },
        title="Hits, of what was looked up",
    )


def _counts(reuse: ReuseFacts) -> FactList:
    return FactList(
        title="Counted in the measured window",
        rows=[
            (text, units.GIBIBYTES.measured(amount) if name.endswith("_bytes") else f"{amount:,}")
            for name, text in _COUNTED.items()
            if (amount := getattr(reuse, name)) is not None
        ],
        detail=True,
    )
