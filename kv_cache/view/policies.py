"""What policies did that are not the default, as lines and as a table."""

from collections.abc import Iterator

from kv_cache.result.published import (
    AdmissionFacts,
    BlockTally,
    PrefetchFacts,
    PublishedRun,
    WriteFacts,
)
from kv_cache.view import units
from kv_cache.view.parts import ShownColumn, Table

_WRITE_ENDS = ("written", "failed", "no_room")
_PREFETCH_ENDS = ("started", "useful", "late", "wasted", "failed", "no_room")


def policy_table(run: PublishedRun) -> Table:
    """A row for each outcome; no rows if all policies are the default."""
    return Table.of(
        _tallies(run),
        {
            ShownColumn("policy"): lambda row: row[0],
            ShownColumn("which"): lambda row: row[1],
            ShownColumn("outcome"): lambda row: row[2],
            ShownColumn("blocks", units.COUNT): lambda row: row[3].blocks,
            ShownColumn("bytes", units.GIBIBYTES): lambda row: row[3].bytes,
        },
    )


def _tallies(run: PublishedRun) -> Iterator[tuple[str, str, str, BlockTally]]:
    policies = run.policies
    if policies is None:
        return
    admission, write, prefetch = policies.admission, policies.write, policies.prefetch
    if admission is not None:
        consulted = {name: tier for name, tier in admission.tiers.items() if tier.consulted}
        for name, tier in consulted.items():
            yield "admission", admission.name, f"{name} took", tier.admitted
            for why, tally in tier.not_admitted.items():
                yield "admission", admission.name, f"{name} did not: {why}", tally
        if consulted:
            yield "admission", admission.name, "no tier took", admission.not_stored
    for policy, facts, ends in (
        ("write", write, _WRITE_ENDS),
        ("prefetch", prefetch, _PREFETCH_ENDS),
    ):
        for end in ends:
            ended: BlockTally | None = None if facts is None else getattr(facts, end)
            if facts is not None and ended is not None:
                yield policy, facts.name, end.replace("_", " "), ended


def policy_facts(run: PublishedRun) -> Iterator[tuple[str, str]]:
    """One line for each policy that is not the default."""
    if run.policies is not None:
        yield from _admission(run.policies.admission)
        yield from _write(run.policies.write)
        yield from _prefetch(run.policies.prefetch)


def _admission(facts: AdmissionFacts | None) -> Iterator[tuple[str, str]]:
    if facts is None or facts.name == "always":
        return
    texts = []
    for name, tier in facts.tiers.items():
        if tier.consulted:
            refused = {why: tally.blocks for why, tally in tier.not_admitted.items()}
            whole = tier.admitted.blocks + sum(refused.values())
            rest = "".join(f", {count} {why}" for why, count in refused.items())
            texts.append(f"{name} took {tier.admitted.blocks} of {whole}{rest}")
    missed = facts.not_stored.blocks
    lost = f"; {missed} new blocks not stored" if missed else ""
    yield "admission", f"{facts.name}: {'; '.join(texts) or 'no tier was asked'}{lost}"


def _write(facts: WriteFacts | None) -> Iterator[tuple[str, str]]:
    if facts is None or facts.name == "back" or facts.written is None:
        return
    rest = {
        "failed": facts.failed.blocks if facts.failed else 0,
        "without room": facts.no_room.blocks if facts.no_room else 0,
        "dropped as the queue was full": facts.dropped_blocks or 0,
    }
    text = "".join(f", {count} {how}" for how, count in rest.items() if count)
    size = units.GIBIBYTES.measured(facts.written.bytes)
    yield "write", f"{facts.name}: {facts.written.blocks} blocks, {size}{text}"


def _prefetch(facts: PrefetchFacts | None) -> Iterator[tuple[str, str]]:
    if facts is None or facts.name == "none" or facts.started is None:
        return
    ends = {name: getattr(facts, name) for name in ("useful", "late", "wasted", "failed")}
    text = ", ".join(f"{tally.blocks if tally else 0} {name}" for name, tally in ends.items())
    size = units.GIBIBYTES.measured(facts.started.bytes)
    started = f"{facts.name}: {facts.started.blocks} blocks, {size}"
    yield "prefetch", f"{started}: {text}, {facts.unread_blocks} unread"
