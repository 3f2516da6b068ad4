"""Small traces of real shape, made from a seed: text for `datasets/`, for tests and for trying out.

They have the columns, units, line ends and the rough distributions of the public traces whose
format they share, and none of their data. They must not be cited as those traces.

Lengths and gaps are log-logistic with shape 2, median * sqrt(u / (1 - u)): a heavy tail from
division and square root alone, which IEEE 754 rounds the same on every machine, and from
`random()`, the one method that Python keeps stable. So the files are the same everywhere.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from math import sqrt
from random import Random
from types import MappingProxyType

from kv_cache.core.seed import Seed

SAMPLE_SEED = 20
SAMPLE_ROWS = 400

_BLOCK_TOKENS = 512
_TICKS_PER_S = 10_000_000  # Azure's clock has 100 ns ticks


def heavy(rng: Random, median: float, low: float, high: float) -> float:
    """A log-logistic draw of shape 2 within [low, high]; one outside is drawn again.

    Again, and not cut: a heap of rows at exactly the cap is no real shape.
    """
    while True:
        u = rng.random()
        value = median * sqrt(u / (1 - u))
        if low <= value <= high:
            return value


# --- Mooncake ---


@dataclass(slots=True)
class _Session:
    """One conversation: the prompt so far, and the ids of its blocks."""

    tokens: int
    asked_ms: int = 0
    answered: int = 0
    ids: list[int] = field(default_factory=list)


class _Chats:
    """Sessions that go on or begin. Ids count up in the order in which contents first appear."""

    def __init__(self, rng: Random, max_tokens: int, turn_share: float) -> None:
        self._rng = rng
        self._max_tokens = max_tokens
        self._turn_share = turn_share
        self._open: list[_Session] = []
        self._next_id = 1  # 0 is the first block of all: a system prompt that they share

    def turn(self, now_ms: int) -> tuple[int, int, list[int]]:
        """Prompt tokens, output tokens and ids of the next request."""
        session = self._continued(now_ms) or self._begun()
        self._cover(session)
        session.asked_ms = now_ms
        session.answered = int(heavy(self._rng, 350, 1, 2000))
        return session.tokens, session.answered, session.ids

    def _continued(self, now_ms: int) -> _Session | None:
        if not self._open or self._rng.random() >= self._turn_share:
            return None
        place = int(self._rng.random() * len(self._open))
        session = self._open[place]
        if session.asked_ms == now_ms:  # nobody reads an answer within the step it was asked in
            return None
        tokens = session.tokens + session.answered + int(heavy(self._rng, 600, 8, 16_000))
        if tokens > self._max_tokens:
            del self._open[place]
            return None
        # Only whole blocks keep their content when the prompt goes on behind them.
        session.ids = session.ids[: session.tokens // _BLOCK_TOKENS]
        session.tokens = tokens
        return session

    def _begun(self) -> _Session:
        session = _Session(int(heavy(self._rng, 5_000, 600, self._max_tokens)), ids=[0])
        self._open.append(session)
        return session

    def _cover(self, session: _Session) -> None:
        """An id for each block of the prompt, the partly filled one at its end included."""
        missing = -(-session.tokens // _BLOCK_TOKENS) - len(session.ids)
        session.ids = [*session.ids, *range(self._next_id, self._next_id + missing)]
        self._next_id += missing


def mooncake_lines(
    seed: Seed,
    rows: int = SAMPLE_ROWS,
    *,
    step_ms: int = 3000,
    max_tokens: int = 32_000,
    turn_share: float = 0.45,
) -> Iterator[str]:
    """Mooncake's JSON lines without line ends: 5 to 14 requests in each step of `step_ms`.

    `turn_share` is the chance that a request is the next turn of an open session.
    """
    rng = seed.rng()
    chats = _Chats(rng, max_tokens, turn_share)
    timestamp = left = 0
    for row in range(rows):
        if left == 0:
            timestamp += step_ms if row else 0
            left = 5 + int(rng.random() * 10)
        left -= 1
        prompt, output, ids = chats.turn(timestamp)
        yield json.dumps(
            {
                "timestamp": timestamp,
                "input_length": prompt,
                "output_length": output,
                "hash_ids": ids,
            }
        )


# --- BurstGPT ---


def burstgpt_lines(
    seed: Seed, rows: int = SAMPLE_ROWS, *, failed_share: float = 0.08
) -> Iterator[str]:
    """BurstGPT's CSV without line ends, the header first: bursty gaps in whole seconds.

    `failed_share` is the chance that a request has no response.
    """
    rng = seed.rng()
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    second = 5
    for row in range(rows):
        second += int(heavy(rng, 6, 0, 900)) if row else 0
        model = "GPT-4" if rng.random() < 0.2 else "ChatGPT"
        kind = "API log" if rng.random() < 0.4 else "Conversation log"
        request = int(heavy(rng, 420, 3, 8_000))
        response = 0 if rng.random() < failed_share else int(heavy(rng, 200, 1, 4_000))
        yield f"{second},{model},{request},{response},{request + response},{kind}"


# --- Azure ---


def azure_lines(seed: Seed, rows: int = SAMPLE_ROWS) -> Iterator[str]:
    """Azure's CSV without line ends, the header first: a service with about 5 requests/s."""
    rng = seed.rng()
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    ticks = (18 * 3600 + 15 * 60) * _TICKS_PER_S
    for _ in range(rows):
        ticks += int(heavy(rng, 0.12, 0.0001, 20) * _TICKS_PER_S)
        context = int(heavy(rng, 1_020, 4, 14_000))
        yield f"{_instant(ticks)},{context},{int(heavy(rng, 130, 1, 1_000))}"


def _instant(ticks: int) -> str:
    """`2023-11-16 18:15:46.6805900` for ticks since the beginning of that day."""
    seconds, fraction = divmod(ticks, _TICKS_PER_S)
    days, of_day = divmod(seconds, 86_400)
    day = date.fromordinal(date(2023, 11, 16).toordinal() + days)
    minutes, second = divmod(of_day, 60)
    hour, minute = divmod(minutes, 60)
    return f"{day} {hour:02}:{minute:02}:{second:02}.{fraction:07}"


# --- the files ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One file: its lines, and how its format ends them."""

    lines: Callable[[Seed, int], Iterator[str]]
    line_end: str = "\n"
    last_line_end: bool = True


SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "mooncake_sample.jsonl": Sample(lines=mooncake_lines),
        "burstgpt_sample.csv": Sample(lines=burstgpt_lines),
        # As published: CRLF, and nothing behind the last row.
        "azure_sample.csv": Sample(lines=azure_lines, line_end="\r\n", last_line_end=False),
    }
)


def sample_bytes(name: str, seed: int = SAMPLE_SEED, rows: int = SAMPLE_ROWS) -> bytes:
    """The whole file `name` of `SAMPLES`; the same arguments give the same bytes."""
    sample = SAMPLES[name]
    text = sample.line_end.join(sample.lines(Seed(seed).child("samples", name), rows))
    return (text + (sample.line_end if sample.last_line_end else "")).encode()
