"""Traces with token counts alone: BurstGPT, Azure, SplitwiseSim."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from random import Random

from kv_cache.core.seed import Seed
from kv_cache.workload.samples.draws import below, heavy

_TICKS_PER_S = 10_000_000  # Azure's clock of 2023 has 100 ns ticks


# --- BurstGPT ---


def burstgpt_lines(seed: Seed, rows: int, *, failed_share: float = 0.08) -> Iterator[str]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a conversation has said so far."""

    session: str
    tokens: int


def burstgpt3_lines(seed: Seed, rows: int) -> Iterator[str]:
    """The third release's CSV: conversations whose prompts hold their history, and API calls."""
    rng = seed.rng()
    yield (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type"
    )
    second, talks = 19_440_110, list[_Said]()
    for row in range(rows):
        second += int(heavy(rng, 20, 0, 900)) if row else 0
        model = "GPT-4" if rng.random() < 0.2 else "ChatGPT"
        if rng.random() < 0.4:
            session, request = "", int(heavy(rng, 420, 3, 8_000))
        else:
            said = _said(rng, talks, seed.child("session", row))
            # A few prompts are shorter than what was said: the service has cut the history.
            kept = said.tokens if rng.random() < 0.95 else said.tokens // 3
            session, request = said.session, kept + int(heavy(rng, 40, 3, 2_000))
        response = 0 if rng.random() < 0.06 else int(heavy(rng, 200, 1, 2_000))
        if session and response and request + response < 12_000:
            talks.append(_Said(session=session, tokens=request + response))
        kind = "Conversation log" if session else "API log"
        yield (
            f"{second}.0,{session},{1 + response // 25},{model},{request},{response},"
            f"{request + response},{kind}"
        )


def _said(rng: Random, talks: list[_Said], seed: Seed) -> _Said:
    """A conversation that goes on, or a new one that `seed` names."""
    if talks and rng.random() < 0.65:
        return talks.pop(below(rng, len(talks)))
    digits = seed.bits(16).hex()
    cuts = (0, 8, 12, 16, 20, 32)
    parts = [digits[a:b] for a, b in pairwise(cuts)]
    return _Said(session="-".join(parts), tokens=0)


# --- Azure ---


def azure_lines(seed: Seed, rows: int) -> Iterator[str]:
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


def azure2024_lines(seed: Seed, rows: int) -> Iterator[str]:
    """The week of 2024: microseconds, none where they are 0, and the offset from UTC."""
    rng = seed.rng()
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    micros = 0
    for _ in range(rows):
        micros += int(heavy(rng, 0.06, 0.0001, 20) * 1_000_000)
        seconds, fraction = divmod(micros, 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        day = date.fromordinal(date(2024, 5, 10).toordinal() + hour // 24)
        point = f".{fraction:06}" if fraction else ""
        instant = f"{day} {hour % 24:02}:{minute:02}:{second:02}{point}+00:00"
        yield f"{instant},{int(heavy(rng, 1_500, 4, 7_500))},{int(heavy(rng, 20, 1, 900))}"


# --- SplitwiseSim ---


def splitwise_lines(seed: Seed, rows: int) -> Iterator[str]:
    """SplitwiseSim's CSV with all columns that its generator writes."""
    rng = seed.rng()
    yield (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    )
    micros = 0
    for row in range(rows):
        micros += int(heavy(rng, 14_000, 1, 2_000_000))
        prompt, output = int(heavy(rng, 1_020, 4, 14_000)), int(heavy(rng, 130, 1, 1_000))
        yield f"{row},2,0,{micros // 1_000_000}.{micros % 1_000_000:06},1,{prompt},{output}"
