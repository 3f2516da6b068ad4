"""Whether several ranks' results are one measurement: the rules R1 to R8, and the worst of them.

Sums over ranks mean something only if every rank is there, all were asked for the same, and all
measured at the same time. What is missing or wrong is named by its rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from kv_cache.core.crew import Crew, is_own
from kv_cache.core.units import NS_PER_MS, NS_PER_S, human_bytes
from kv_cache.metrics.evidence import Thresholds
from kv_cache.metrics.passport import VALID, Status, Verdict
from kv_cache.result.metrics import Json
from kv_cache.result.paths import flat
from kv_cache.result.ranks.part import Part, counted_of, runs_of
from kv_cache.result.verdicts import FINISHED, Look, verdict_of

LEAST_SHARED = 0.5
"""Of the span in which all ranks measured together: below it the sums are of no instant."""
WANTED_SHARED = 0.95
MOST_UNLIKE = 0.05
"""By which the longest window may exceed the shortest."""
MOST_ASTRAY_S = (1.0, 60.0)
"""By which the wall clocks of two ranks may disagree on when their windows began: on one host, and
on two, which keep their time apart."""
MOST_SKEW = 0.01
"""From the first opening to the last, as a share of the shortest window."""

NAMES: Mapping[str, str] = {
    "R1": "completeness",
    "R2": "sameness",
    "R3": "overlap",
    "R4": "windows",
    "R5": "start",
    "R6": "ranks",
    "R7": "others on the device",
    "R8": "seeds",
}

_SAME = ("program_version", "driver", "semantics_preset", "model", "semantics")
_MOST_NAMED = 5


def judged(parts: Sequence[Part], crew: Crew, body: Json, together: Json) -> Verdict:
    """Return the verdict on all of them. `body` has the merged sections."""
    counted = counted_of(parts)
    looks = {
        "R1": _complete(parts, crew),
        "R2": _same(counted),
        "R3": _overlap(counted, together),
        "R4": _windows(counted),
        "R5": _start(counted, crew),
        "R6": _each(counted),
        "R7": _others(counted, body, crew),
        "R8": _seeds(counted),
    }
    return verdict_of(NAMES, looks)


def _complete(parts: Sequence[Part], crew: Crew) -> Look:
    wrong = [flaw for part in parts for flaw in _lacks(part)]
    whole = sum(part.counted and part.rank < crew.expected for part in parts)
    if not wrong and whole == crew.expected:
        return Status.PASS, f"each of {crew.expected} ranks has one whole result and ran to its end"
    ended = "" if crew.ended_early is None else f"; all were ended: {crew.ended_early}"
    message = (
        f"{whole} of {crew.expected} ranks have a result that counts: {'; '.join(wrong)}{ended}"
    )
    return Status.INVALID, f"{message}; run all of them again"


def _lacks(part: Part) -> Iterator[str]:
    who = f"rank {part.rank}"
    if part.flaw is not None:
        yield f"{who} {part.flaw}"
    elif part.lost is not None:
        yield f"{who} was lost ({part.lost})"
    elif part.value_at("status") != FINISHED:
        yield f"{who} was {part.value_at('status')}"


def _same(counted: Sequence[Part]) -> Look:
    if len(counted) < 2:
        return Status.PASS, "there is no other rank to be unlike"
    first, *others = counted
    mine = dict(_facts(first))
    differing: dict[str, list[int]] = {}
    for other in others:
        theirs = dict(_facts(other))
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                differing.setdefault(name, []).append(other.rank)
    if not differing:
        return Status.PASS, "all ranks ran the same program with the same configuration and model"
    named = [
        f"{name} ({'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))} against "
        f"rank {first.rank})"
        for name, ranks in list(differing.items())[:_MOST_NAMED]
    ]
    more = len(differing) - len(named)
    rest = f" and {more} more" if more > 0 else ""
    return Status.INVALID, f"ranks differ in {', '.join(named)}{rest}; give all of them the same"


def _facts(part: Part) -> Iterator[tuple[str, Any]]:
    for name in _SAME:
        yield from flat(part.value_at(name), name)
    for name, value in flat(part.value_at("config"), ""):
        if not is_own(name):
            yield f"config.{name}", value
    traced = part.value_at("config.output.io_trace_log") is not None
    yield "whether the run only writes a trace (output.io_trace_log)", traced
    yield "workload.source", part.value_at("workload.source")
    yield "workload.sha256", part.value_at("workload.sha256")


def _real(counted: Sequence[Part]) -> bool:
    return any(part.value_at("driver") == "real-io" for part in counted)


_VIRTUAL: Look = (Status.NOT_APPLICABLE, "virtual time: there is nothing to look at")


def _overlap(counted: Sequence[Part], together: Json) -> Look:
    if not _real(counted):
        return _VIRTUAL
    share = together["shared_share"]
    if share is None:
        return Status.SUSPECT, (
            "when each rank's window was is not known, so nothing says that they measured at the "
            "same time; let one command start them (--clients, mpirun)"
        )
    extent = (
        f"all ranks measured together for {together['shared_s']:.3f} s of the "
        f"{together['span_s']:.3f} s from the first window's begin to the last one's end "
        f"({100 * share:.1f} %)"
    )
    if share >= LEAST_SHARED and (astray := _astray(counted)):
        return Status.SUSPECT, astray
    if share >= WANTED_SHARED:
        return Status.PASS, extent
    if share >= LEAST_SHARED:
        return Status.SUSPECT, f"{extent}, and {100 * WANTED_SHARED:g} % are required"
    return Status.INVALID, f"{extent}: sums of what did not happen together are no throughput"


def _astray(counted: Sequence[Part]) -> str | None:
    """Say which window lies elsewhere by the wall clocks than by the coordinator's: that of a
    result of another run, put in place of its own."""
    seen = [
        (part, wall_s - begin_ns / NS_PER_S)
        for part in counted
        if (wall_s := part.wall_begin_s) is not None and (begin_ns := part.begin_ns) is not None
    ]
    for (one, here_s), (other, there_s) in combinations(seen, 2):
        apart_s = abs(here_s - there_s)
        if apart_s > MOST_ASTRAY_S[one.host != other.host]:
            return (
                f"by the wall clocks the windows of ranks {one.rank} and {other.rank} began "
                f"{apart_s:.1f} s further apart than the coordinator saw: one result is of another "
                "run, or a clock was set; run all of them again, with clocks in step"
            )
    return None


def _windows(counted: Sequence[Part]) -> Look:
    lengths = {part.rank: part.run.window_s for part in counted if part.run is not None}
    if not lengths:
        return Status.NOT_JUDGED, "no rank has a window"
    short, long = (pick(lengths, key=lambda r: lengths[r]) for pick in (min, max))
    if lengths[long] <= lengths[short] * (1 + MOST_UNLIKE):
        return Status.PASS, f"windows were {lengths[short]:.3f} to {lengths[long]:.3f} s long"
    return Status.SUSPECT, (
        f"windows were {lengths[short]:.3f} s (rank {short}) to {lengths[long]:.3f} s (rank {long})"
        f", more than {100 * MOST_UNLIKE:g} % apart: the sum of their rates is of no common time; "
        "bound all ranks by --duration"
    )


def _start(counted: Sequence[Part], crew: Crew) -> Look:
    if not _real(counted):
        return _VIRTUAL
    skew, error = crew.skew_ns, crew.skew_error_ns
    if skew is None or error is None:
        return Status.NOT_JUDGED, "not every planned rank has opened its window"
    shortest = min((run.window_s for run in runs_of(counted)), default=0.0)
    spread = (
        f"ranks opened within {skew / NS_PER_MS:.3f} ms (± {error / NS_PER_MS:.3f} ms, as sure as "
        "their clocks' offsets are)"
    )
    if skew <= MOST_SKEW * shortest * NS_PER_S:
        return Status.PASS, spread
    return Status.SUSPECT, f"{spread}, more than {100 * MOST_SKEW:g} % of the window; run longer"


def _each(counted: Sequence[Part]) -> Look:
    words = [str(part.value_at("passport.verdict")) for part in counted]
    if not counted:
        return Status.NOT_JUDGED, "no rank has a verdict"
    sentences = [
        f"rank {part.rank} is {word} ({'; '.join(_reasons(part)) or 'no reason is given'})"
        for part, word in zip(counted, words, strict=True)
        if word != VALID
    ]
    if not sentences:
        return Status.PASS, "every rank is valid by its own rules"
    grave = any(word not in (VALID, Status.SUSPECT.value) for word in words)
    return Status.INVALID if grave else Status.SUSPECT, "; ".join(sentences)


def _reasons(part: Part) -> list[str]:
    reasons = part.value_at("passport.reasons")
    return list(map(str, reasons)) if isinstance(reasons, list) else []


def _others(counted: Sequence[Part], body: Json, crew: Crew) -> Look:
    """Judge what others moved. One rank alone cannot separate its siblings' bytes from strangers';
    all of them can."""
    if not _real(counted):
        return _VIRTUAL
    if len(counted) < crew.expected:
        return (
            Status.NOT_JUDGED,
            "bytes of ranks that do not count cannot be separated from strangers'",
        )
    rows = (body["reconciliation"] or {}).get("devices", [])
    looks = [look for row in rows if (look := _strangers(row)) is not None]
    if not looks:
        return Status.NOT_JUDGED, "no device counts what was moved on it"
    strange = [message for status, message in looks if status is Status.SUSPECT]
    if strange:
        return Status.SUSPECT, f"{'; '.join(strange)}; stop them"
    return Status.PASS, "; ".join(message for _, message in looks)


def _strangers(row: Json) -> Look | None:
    names = ("device", "process")
    moved = {name: [row[f"{name}_{kind}_bytes"] for kind in ("read", "write")] for name in names}
    if row["device"] is None or any(None in counts for counts in moved.values()):
        return None
    limits, ours = Thresholds(), sum(moved["process"])
    pairs = zip(moved["device"], moved["process"], strict=True)
    theirs = sum(max(0, device - process) for device, process in pairs)
    strange = (
        f"on {row['device']} of {row['host'] or 'the machine'} others than the ranks moved "
        f"{human_bytes(theirs)}, beside {human_bytes(ours)} of theirs"
    )
    much = theirs > max(limits.most_foreign_share * ours, limits.enough_bytes)
    return (Status.SUSPECT if much else Status.PASS), strange


def _seeds(counted: Sequence[Part]) -> Look:
    ranks: dict[str, list[int]] = {}
    for part in counted:
        ranks.setdefault(str(part.value_at("seed")), []).append(part.rank)
    twice = [f"ranks {', '.join(map(str, r))} had seed {s}" for s, r in ranks.items() if len(r) > 1]
    if not twice:
        return Status.PASS, "each rank asked and wrote by a seed of its own"
    return Status.SUSPECT, f"{'; '.join(twice)}: they wrote the same bytes, which a drive may share"
