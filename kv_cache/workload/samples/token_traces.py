"""Traces with token counts alone: BurstGPT, Azure, SplitwiseSim, and plain tables of requests."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

from msgspec import Struct

from kv_cache.core.seed import Seed
from kv_cache.workload.samples.draws import below, heavy, seconds

_TICKS_PER_S = 10_000_000  # Azure's clock of 2023 has 100 ns ticks


# --- BurstGPT ---


def burstgpt_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield BurstGPT's CSV without line ends, the header first: bursty gaps in whole seconds."""
    rng = seed.rng()
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    second = 5
    for row in range(rows):
        second += int(heavy(rng, 6, 0, 900)) if row else 0
        model = "GPT-4" if rng.random() < 0.2 else "ChatGPT"
        kind = "API log" if rng.random() < 0.4 else "Conversation log"
        request = int(heavy(rng, 420, 3, 8_000))
        response = 0 if rng.random() < 0.08 else int(heavy(rng, 200, 1, 4_000))
        yield f"{second},{model},{request},{response},{request + response},{kind}"


class _Talk(Struct, frozen=True, kw_only=True):
    """A conversation and the tokens of its history."""

    session: str
    tokens: int


def burstgpt3_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield the third release's CSV: conversations whose prompts hold their history, and API
    calls."""
    rng = seed.rng()
    yield (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type"
    )
    second, talks = 19_440_110, list[_Talk]()
    for row in range(rows):
        second += int(heavy(rng, 20, 0, 900)) if row else 0
        model = "GPT-4" if rng.random() < 0.2 else "ChatGPT"
        if rng.random() < 0.4:
            session, request = "", int(heavy(rng, 420, 3, 8_000))
        else:
            talk = _next_talk(rng, talks, seed.child("session", row))
            # A few prompts are shorter than the history, which the service has cut.
            kept = talk.tokens if rng.random() < 0.95 else talk.tokens // 3
            session, request = talk.session, kept + int(heavy(rng, 40, 3, 2_000))
        response = 0 if rng.random() < 0.06 else int(heavy(rng, 200, 1, 2_000))
        if session and response and request + response < 12_000:
            talks.append(_Talk(session=session, tokens=request + response))
        kind = "Conversation log" if session else "API log"
        yield (
            f"{second}.0,{session},{1 + response // 25},{model},{request},{response},"
            f"{request + response},{kind}"
        )


def _next_talk(rng: Random, talks: list[_Talk], seed: Seed) -> _Talk:
    """Return a conversation that goes on, or a new one that `seed` names."""
    if talks and rng.random() < 0.65:
        return talks.pop(below(rng, len(talks)))
    digits = seed.bits(16).hex()
    cuts = (0, 8, 12, 16, 20, 32)
    parts = [digits[a:b] for a, b in pairwise(cuts)]
    return _Talk(session="-".join(parts), tokens=0)


# --- Azure ---


def azure_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield Azure's CSV without line ends, the header first: a service with about 5 requests/s."""
    rng = seed.rng()
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    ticks = 0
    for _ in range(rows):
        ticks += int(heavy(rng, 0.12, 0.0001, 20) * _TICKS_PER_S)
        seconds_in, fraction = divmod(ticks, _TICKS_PER_S)
        second = datetime(2023, 11, 16, 18, 15) + timedelta(seconds=seconds_in)
        context = int(heavy(rng, 1_020, 4, 14_000))
        yield f"{second}.{fraction:07},{context},{int(heavy(rng, 130, 1, 1_000))}"


def azure2024_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield Azure's CSV of 2024: microseconds, none if they are 0, and the offset from UTC."""
    rng = seed.rng()
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    micros = 0
    for _ in range(rows):
        micros += int(heavy(rng, 0.06, 0.0001, 20) * 1_000_000)
        instant = datetime(2024, 5, 10, tzinfo=UTC) + timedelta(microseconds=micros)
        context = int(heavy(rng, 1_500, 4, 7_500))
        yield f"{instant},{context},{int(heavy(rng, 20, 1, 900))}"


# --- SplitwiseSim ---


def splitwise_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield SplitwiseSim's CSV with all columns that its generator writes."""
    rng = seed.rng()
    yield (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    )
    micros = 0
    for row in range(rows):
        micros += int(heavy(rng, 14_000, 1, 2_000_000))
        prompt, output = int(heavy(rng, 1_020, 4, 14_000)), int(heavy(rng, 130, 1, 1_000))
        yield f"{row},2,0,{seconds(micros)},1,{prompt},{output}"


# --- plain tables ---


class _Ask(Struct, frozen=True, kw_only=True):
    """A single request of a service with a few requests a second."""

    micros: int
    prompt: int
    output: int


def _asks(seed: Seed, rows: int) -> Iterator[_Ask]:
    rng = seed.rng()
    micros = 0
    for _ in range(rows):
        yield _Ask(
            micros=micros,
            prompt=int(heavy(rng, 800, 4, 8_000)),
            output=int(heavy(rng, 130, 1, 1_000)),
        )
        micros += int(heavy(rng, 200_000, 100, 5_000_000))


def request_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield a CSV of requests in seconds; some belong to the session of an earlier one, of which
    each prompt holds the history."""
    rng = seed.child("sessions").rng()
    spoken: dict[int, int] = {}
    yield "request_id,arrived_at,session_id,num_prefill_tokens,num_decode_tokens"
    for number, ask in enumerate(_asks(seed, rows)):
        session = below(rng, number // 3 + 1)
        prompt = spoken.get(session, 0) + ask.prompt
        if prompt < 12_000:
            spoken[session] = prompt + ask.output
        else:
            prompt = ask.prompt
        yield f"{number},{seconds(ask.micros)},{session},{prompt},{ask.output}"


def request_json_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield single requests as JSON lines, in seconds."""
    for number, ask in enumerate(_asks(seed, rows)):
        keys = {"request_id": f"r{number}", "arrival_time": ask.micros / 1_000_000}
        yield json.dumps({**keys, "prompt_tokens": ask.prompt, "output_tokens": ask.output})


def request_json_list(seed: Seed, rows: int) -> Iterator[str]:
    """Yield single requests as the lines of one JSON list, in milliseconds, by Mooncake's keys."""
    yield "["
    for number, ask in enumerate(_asks(seed, rows), 1):
        keys = {"timestamp": ask.micros // 1000, "input_length": ask.prompt}
        comma = "," if number < rows else ""
        yield json.dumps({**keys, "output_length": ask.output}) + comma
    yield "]"


def request_ms_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield a CSV of single requests in milliseconds."""
    yield "arrival_ms,prompt_tokens,output_tokens"
    for ask in _asks(seed, rows):
        yield f"{ask.micros / 1000:.3f},{ask.prompt},{ask.output}"


def five_column_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield single requests in five columns behind a header."""
    yield "# id arrival_ms prompt_tokens gen_tokens streaming"
    for number, ask in enumerate(_asks(seed, rows)):
        yield f"{number} {ask.micros // 1000} {ask.prompt} {ask.output} {number % 2}"
