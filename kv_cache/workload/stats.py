"""What a stream of requests looks like: how many tokens, when, of which sessions, what is reused.

The numbers are those of the planned requests of a source, as if each were answered at once. So the
same code looks at a trace of any format and at synthetic users. Which requests belong to sessions
a request does not say: those are added to `Sessions`, separately.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from math import sqrt

from msgspec import Struct

from kv_cache.core.block import Block
from kv_cache.core.kinds import Lookup
from kv_cache.core.request import Request
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.workload.distribution import Spread, Times, spread_of
from kv_cache.workload.reuse import Reuse, ReuseFigures

DISPERSION_WINDOWS_S = (1, 10, 60, 600)
_FEWEST_WINDOWS = 5  # of which a variance says something

_MOST_BINS = 400
_BIN_STEPS = (2, 5, 2, 5, 2, 5, 2, 5, 2, 3, 2, 5, 2, 5, 3, 2, 2, 3, 2, 2)
"""From a bin of 0.1 ms to the next: those that people count in (1 s, 2 s, 6 s, 12 s, 60 s, 2 min,
10 min, 30 min, 1 h, ...), each a multiple of the one before."""
_FIRST_BIN_NS = NS_PER_MS // 10


class Dispersion(Struct, frozen=True, kw_only=True):
    """Variance over mean of the number of arrivals in windows; 1 for a Poisson process (Cox and
    Lewis, "The Statistical Analysis of Series of Events", 1966)."""

    window_s: int
    windows: int
    index: float


class ArrivalFigures(Struct, frozen=True, kw_only=True):
    """Gaps are those between one request and the next. `per_s` counts gaps, not requests; it is
    None where all came at once, as `gap_cv` (standard deviation over mean) is. `bins` are requests
    in each `bin_s` seconds."""

    span_s: float
    per_s: float | None
    gap_cv: float | None
    longest_gap_s: float
    dispersion: Sequence[Dispersion]
    bin_s: float
    bins: Sequence[int]


class SessionFigures(Struct, frozen=True, kw_only=True):
    """`step_s` are the times from one request of a session to the next; in a trace with instants
    they contain its answers. `think_s` are the think times that a trace states."""

    sessions: int
    turns: Spread | None
    one_turn: int
    think_s: Spread | None
    step_s: Spread | None


class TokenFigures(Struct, frozen=True, kw_only=True):
    """Token counts as the source gives them: a prompt includes its history, but for synthetic users
    with one object a turn, whose prompts are what is new."""

    prompt: Spread | None
    output: Spread | None


class StreamFigures(Struct, frozen=True, kw_only=True):
    """`retrieving` are requests of RAG; `operations` are those of an I/O trace, and `reads` the
    reads of them."""

    requests: int
    retrieving: int
    operations: int
    reads: int
    models: Sequence[tuple[str, int]]
    tokens: TokenFigures
    arrivals: ArrivalFigures
    reuse: ReuseFigures


class Stream:
    """Counts requests that are added in their order."""

    def __init__(self, *, by_conversation: bool = False) -> None:
        self._prompts: Counter[int] = Counter()
        self._outputs: Counter[int] = Counter()
        self._models: Counter[str] = Counter()
        self._arrivals = Arrivals()
        self._reuse = Reuse(by_conversation=by_conversation)
        self._retrieving = self._operations = self._reads = 0
        self.requests = 0

    def add(self, request: Request) -> None:
        self.requests += 1
        self._prompts[request.prompt_tokens] += 1
        self._outputs[request.output_tokens] += 1
        self._models[request.model] += 1
        self._retrieving += request.retrieved
        if request.lookup is Lookup.OPERATION:
            self._operations += 1
            self._reads += request.new_from
        self._arrivals.add(request.intended_ns)
        self._reuse.add(request)

    def store(self, blocks: Iterable[Block]) -> None:
        """Add blocks that are there before the first request."""
        self._reuse.store(blocks)

    def figures(self) -> StreamFigures:
        return StreamFigures(
            requests=self.requests,
            retrieving=self._retrieving,
            operations=self._operations,
            reads=self._reads,
            models=[pair for pair in self._models.most_common() if pair[0]],
            tokens=TokenFigures(prompt=spread_of(self._prompts), output=spread_of(self._outputs)),
            arrivals=self._arrivals.figures(),
            reuse=self._reuse.figures(),
        )


class Arrivals:
    """Instants that do not decrease; one that does counts as the one before it. All sums are
    exact."""

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._last_ns = 0
        self._gaps = self._squares = self._longest_ns = 0
        self._windows = [_Windows(seconds) for seconds in DISPERSION_WINDOWS_S]
        self._bins = _Bins()

    def add(self, at_ns: int) -> None:
        if self._first_ns is None:
            self._first_ns = self._last_ns = at_ns
        else:
            gap_ns = max(0, at_ns - self._last_ns)
            self._last_ns += gap_ns
            self._gaps += 1
            self._squares += gap_ns * gap_ns
            self._longest_ns = max(self._longest_ns, gap_ns)
        since_ns = self._last_ns - self._first_ns
        for windows in self._windows:
            windows.add(since_ns)
        self._bins.add(since_ns)

    def figures(self) -> ArrivalFigures:
        span_ns = self._last_ns - (self._first_ns or 0)
        dispersion = [windows.figures() for windows in self._windows]
        return ArrivalFigures(
            span_s=span_ns / NS_PER_S,
            per_s=self._gaps / (span_ns / NS_PER_S) if span_ns else None,
            gap_cv=self._cv(span_ns) if span_ns else None,
            longest_gap_s=self._longest_ns / NS_PER_S,
            dispersion=[each for each in dispersion if each is not None],
            bin_s=self._bins.width_ns / NS_PER_S,
            bins=self._bins.counts.tolist(),
        )

    def _cv(self, span_ns: int) -> float:
        """Return the coefficient of variation of the gaps, whose sum is the span."""
        return sqrt(max(0, self._gaps * self._squares - span_ns * span_ns)) / span_ns


class _Windows:
    """Numbers of arrivals in windows that follow each other; the last is not complete."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._width_ns = seconds * NS_PER_S
        self._window = self._count = self._sum = self._squares = 0

    def add(self, since_ns: int) -> None:
        window = since_ns // self._width_ns
        if window != self._window:
            self._sum += self._count
            self._squares += self._count * self._count
            self._window, self._count = window, 0
        self._count += 1

    def figures(self) -> Dispersion | None:
        if self._window < _FEWEST_WINDOWS or not self._sum:
            return None
        mean = self._sum / self._window
        variance = self._squares / self._window - mean * mean
        return Dispersion(window_s=self._seconds, windows=self._window, index=variance / mean)


class _Bins:
    """Numbers of arrivals in bins, at most `_MOST_BINS`: when there are more, bins are joined."""

    def __init__(self) -> None:
        self.width_ns = _FIRST_BIN_NS
        self.counts = array("q", [0])
        self._steps = iter(_BIN_STEPS)

    def add(self, since_ns: int) -> None:
        while (place := since_ns // self.width_ns) >= _MOST_BINS:
            self._join()
        if place >= len(self.counts):
            self.counts.extend([0] * (place + 1 - len(self.counts)))
        self.counts[place] += 1

    def _join(self) -> None:
        step = next(self._steps, 2)
        self.width_ns *= step
        joined = (sum(self.counts[i : i + step]) for i in range(0, len(self.counts), step))
        self.counts = array("q", joined)


class Sessions:
    """Counts the turns of sessions, whose requests are added in the session's order.

    It remembers each session's number of turns and last instant: there is at least one block of a
    session's own for each.
    """

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._steps = Times()

    def add(self, request: Request) -> None:
        session, at_ns = request.conversation, request.intended_ns
        turns = self._turns.get(session, 0)
        if turns:
            self._steps.add(max(0, at_ns - self._last_ns[session]))
        self._turns[session] = turns + 1
        self._last_ns[session] = at_ns

    def figures(self, thinks: Times | None = None) -> SessionFigures | None:
        """Return the figures; None for no session. `thinks`: the think times that a trace
        states."""
        if not self._turns:
            return None
        turns = Counter(self._turns.values())
        return SessionFigures(
            sessions=len(self._turns),
            turns=spread_of(turns),
            one_turn=turns[1],
            think_s=None if thinks is None else thinks.spread(NS_PER_S),
            step_s=self._steps.spread(NS_PER_S),
        )
