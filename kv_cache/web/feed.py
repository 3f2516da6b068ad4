"""What watchers of a run see, once a second: one look at the run for all of them, and only while
somebody watches.

A watcher that comes later, or again, gets the last `KEPT` seconds first; older ones are let go, so
that neither a long run nor a slow reader makes anything grow.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress

import orjson

from kv_cache.result.metrics import Json
from kv_cache.web.jobs import BusyError, Jobs, JobState, WebRun, metrics_url
from kv_cache.web.live import Scrape, findings, numbers, parse, probes

KEPT = 600
MOST_WATCHERS = 64
_PATIENCE_S = 2.0
_LARGEST = 1 << 20  # bytes of a scrape
_LINES = 12

Event = tuple[int, bytes]


class Feed:
    """One run that is watched."""

    def __init__(self, jobs: Jobs, job: WebRun, tick_s: float, clock: Callable[[], float]) -> None:
        self._jobs, self._job = jobs, job
        self._tick_s, self._clock = tick_s, clock
        self.events: deque[Event] = deque(maxlen=KEPT)
        self.watchers = 0
        self._number = 0
        self._ticked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._before: Scrape | None = None
        self._phase, self._phase_since_s = "", 0.0

    async def watch(self, after: int) -> AsyncIterator[Event]:
        """Yield what was seen after the event `after`, then each second, until the run ends."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_on())
        if after > self._number:  # of a server or a feed before this one: nothing of it is here
            after = 0
        while True:
            ticked = self._ticked
            for event in [each for each in self.events if each[0] > after]:
                after = event[0]
                yield event
            if self._task.done():
                return
            await ticked.wait()

    async def _look_on(self) -> None:
        """Scrape once a tick while anybody watches; the last look says how the run ended."""
        going = True
        try:
            while going and self.watchers:
                began_s = time.monotonic()
                going = self._jobs.state(self._job) is JobState.RUNNING
                self._tell(orjson.dumps(await self._seen()))
                if going:
                    await asyncio.sleep(max(0.0, self._tick_s - (time.monotonic() - began_s)))
        finally:
            self._wake()

    def _tell(self, data: bytes) -> None:
        self._number += 1
        self.events.append((self._number, data))
        self._wake()

    def _wake(self) -> None:
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()

    async def _seen(self) -> Json:
        state = self._jobs.state(self._job)
        lines = self._jobs.tail(self._job)
        event = {
            "state": state, "exit_code": self._job.exit_code, "log": lines[-_LINES:],
            "at_s": round(time.time() - self._job.started_unix_s, 1), "probes": probes(lines),
        }  # fmt: skip
        port = self._jobs.metrics_port(self._job)
        if state is not JobState.RUNNING or port is None:
            return event
        text = await _scraped(port)
        if text is None:
            return event
        return {**event, "metrics": metrics_url(port), "now": self._numbers(text)}

    def _numbers(self, text: str) -> Json:
        look = Scrape(self._clock(), parse(text), findings(text))
        phase = look.word("doing", "what") or ""
        if phase != self._phase:
            self._phase, self._phase_since_s = phase, look.at_s
        before, self._before = self._before, look
        return numbers(look, before, look.at_s - self._phase_since_s)


class Feeds:
    """The feeds of all runs that are watched."""

    def __init__(
        self, jobs: Jobs, tick_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs, self._tick_s, self._clock = jobs, tick_s, clock
        self._feeds: dict[str, Feed] = {}

    @property
    def watchers(self) -> int:
        """How many watch any run."""
        return sum(feed.watchers for feed in self._feeds.values())

    @contextmanager
    def watched(self, job: WebRun) -> Iterator[Feed]:
        """Count a watcher from here to the end of the context, also one that never reads. Raises
        BusyError for one too many."""
        if self.watchers >= MOST_WATCHERS:
            raise BusyError(f"{MOST_WATCHERS} watch already; close one of their pages")
        feed = self._of(job)
        feed.watchers += 1
        try:
            yield feed
        finally:
            feed.watchers -= 1

    def _of(self, job: WebRun) -> Feed:
        """Return the feed of a run; those that nobody watches are let go."""
        self._feeds = {name: feed for name, feed in self._feeds.items()
                       if feed.watchers or name == job.id}  # fmt: skip
        return self._feeds.setdefault(job.id, Feed(self._jobs, job, self._tick_s, self._clock))


async def _scraped(port: int) -> str | None:
    """Return what the run's endpoint says; None while it does not answer."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                answer = bytearray()
                while len(answer) <= _LARGEST and (part := await reader.read(1 << 16)):
                    answer += part
            finally:
                writer.close()
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        return body.decode() if b" 200 " in head[:20] else None
    return None
