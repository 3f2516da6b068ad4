"""Single requests that share nothing: an open or a closed loop of them, drawn in bulk.

A request has no content here: its leaf is the root, so nothing is looked up and nothing is found.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, repeat

from kv_cache.config.lengths import build_lengths
from kv_cache.config.scenario import WorkloadSection
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.sources.draws import DrawStream, arrival_gaps, span_draw, token_draw

_BULK = 4096
_Row = tuple[int, int, int, int, int]


class Singles:
    """`concurrency` users who ask one after the other, or Poisson arrivals."""

    def __init__(self, work: WorkloadSection, seed: Seed) -> None:
        self._work = work
        self._seed = seed
        self._closed = work.concurrency > 0
        self._rows = self._drawn()

    def first(self) -> Iterator[ClusterRequest]:
        if not self._closed:
            return self._arriving()
        begun = list(islice(self._rows, self._work.concurrency))
        return (ClusterRequest(n, n, 0, 0, prompt, output) for n, _, _, prompt, output in begun)

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        if not self._closed:
            return ()
        return tuple(
            ClusterRequest(n, n, 0, ended_ns + think, prompt, output)
            for n, _, think, prompt, output in islice(self._rows, 1)
        )

    def _arriving(self) -> Iterator[ClusterRequest]:
        at_ns = 0
        for n, gap, _, prompt, output in self._rows:
            at_ns += gap
            yield ClusterRequest(n, n, 0, at_ns, prompt, output)

    def _drawn(self) -> Iterator[_Row]:
        """Draw for each request: number, gap before it, time to think before it, and lengths."""
        work, seed = self._work, self._seed
        laws = build_lengths(work.lengths)
        think = span_draw(laws.think_s, work.think_s)
        prompt = token_draw(laws.prompt, work.prompt_law, work.prompt_tokens)
        output = token_draw(laws.output, work.output_law, work.output_tokens)
        gaps = repeat(0) if self._closed else arrival_gaps(work, seed)
        thinks, prompts, outputs = (
            DrawStream(seed.child(name)) for name in ("thinks", "prompts", "outputs")
        )
        for start in range(0, work.drawn_requests, _BULK):
            count = min(_BULK, work.drawn_requests - start)
            yield from zip(
                range(start, start + count),
                islice(gaps, count),
                think(thinks.take(count)).tolist() if self._closed else repeat(0),
                prompt(prompts.take(count)).tolist(),
                output(outputs.take(count)).tolist(),
                strict=False,
            )
