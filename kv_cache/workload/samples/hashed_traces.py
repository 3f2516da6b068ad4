"""Traces with content hashes: Mooncake's and Qwen-Bailian's lines."""

import json
from collections.abc import Iterator
from random import Random

from msgspec import Struct

from kv_cache.core.seed import Seed
from kv_cache.workload.samples.draws import NewIds, below, heavy, one_of

_MOONCAKE_TOKENS = 512
_MOONCAKE_STEP_MS = 3000
_MOONCAKE_MOST_TOKENS = 32_000
_QWEN_TOKENS = 16
_QWEN_SYSTEM_BLOCKS = 6  # a system prompt that most conversations begin with


# --- Mooncake ---


class _Talk(Struct):
    """One conversation: the prompt so far, and the ids of its blocks."""

    tokens: int
    sent_ms: int = 0
    answer: int = 0
    ids: tuple[int, ...] = (0,)  # of a system prompt that all conversations share


class _Chats:
    """Conversations that go on or begin."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._open: list[_Talk] = []
        self._new_ids = NewIds(1)

    def turn(self, now_ms: int) -> tuple[int, int, tuple[int, ...]]:
        """Return prompt tokens, output tokens and ids of the next request."""
        session = self._continued(now_ms) or self._begun()
        # The block at the prompt's end, which is partly filled, has an id too.
        session.ids = self._new_ids.cover(session.ids, -(-session.tokens // _MOONCAKE_TOKENS))
        session.sent_ms = now_ms
        session.answer = int(heavy(self._rng, 350, 1, 2000))
        return session.tokens, session.answer, session.ids

    def _continued(self, now_ms: int) -> _Talk | None:
        if not self._open or self._rng.random() >= 0.45:
            return None
        place = int(self._rng.random() * len(self._open))
        session = self._open[place]
        if session.sent_ms == now_ms:  # an answer is not read within the step of its request
            return None
        tokens = session.tokens + session.answer + int(heavy(self._rng, 600, 8, 16_000))
        if tokens > _MOONCAKE_MOST_TOKENS:
            del self._open[place]
            return None
        # Only whole blocks keep their content when the prompt goes on behind them.
        session.ids = session.ids[: session.tokens // _MOONCAKE_TOKENS]
        session.tokens = tokens
        return session

    def _begun(self) -> _Talk:
        session = _Talk(int(heavy(self._rng, 5_000, 600, _MOONCAKE_MOST_TOKENS)))
        self._open.append(session)
        return session


def mooncake_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield Mooncake's JSON lines without line ends: 5 to 14 requests in each step of time."""
    rng = seed.rng()
    chats = _Chats(rng)
    timestamp = left = 0
    for row in range(rows):
        if left == 0:
            timestamp += _MOONCAKE_STEP_MS if row else 0
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


def mooncake_list_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield the same rows as the lines of one JSON list."""
    lines = list(mooncake_lines(seed, rows))
    yield "["
    yield from (f"{line}," for line in lines[:-1])
    yield from (*lines[-1:], "]")


def mooncake_csv_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield the same rows as a CSV, spaces between the ids of a cell."""
    yield "timestamp,input_length,output_length,hash_ids"
    for line in mooncake_lines(seed, rows):
        time, prompt, output, ids = json.loads(line).values()
        yield f"{time},{prompt},{output},{' '.join(map(str, ids))}"


# --- Qwen ---


class _Chat(Struct, frozen=True, kw_only=True):
    """One request that others may continue."""

    chat: int
    turn: int
    prompt: int
    answer: int
    ids: tuple[int, ...]


class _QwenChats:
    """Requests that continue another one or begin; the system prompt has the first ids."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._open: list[_Chat] = []
        self._new_ids = NewIds(_QWEN_SYSTEM_BLOCKS)

    def next(self, chat: int) -> tuple[_Chat, int]:
        """Return the next request, and the chat that it continues (-1 = none)."""
        parent = self._continued()
        if parent is None:
            system = self._rng.random() < 0.7
            known = tuple(range(_QWEN_SYSTEM_BLOCKS)) if system else ()
            prompt = len(known) * _QWEN_TOKENS + int(heavy(self._rng, 240, 4, 2_500))
        else:
            # Only whole blocks keep their content when the prompt goes on behind them.
            known = parent.ids[: parent.prompt // _QWEN_TOKENS]
            prompt = parent.prompt + parent.answer + int(heavy(self._rng, 60, 2, 900))
        request = _Chat(
            chat=chat,
            turn=parent.turn + 1 if parent else 1,
            prompt=prompt,
            answer=int(heavy(self._rng, 160, 1, 900)),
            ids=self._new_ids.cover(known, -(-prompt // _QWEN_TOKENS)),
        )
        if prompt < 4_000:
            self._open.append(request)
        return request, parent.chat if parent else -1

    def _continued(self) -> _Chat | None:
        if not self._open or self._rng.random() >= 0.5:
            return None
        place = below(self._rng, len(self._open))
        # A few stay, so that two requests continue the same one.
        return self._open[place] if self._rng.random() < 0.1 else self._open.pop(place)


def qwen_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield Qwen-Bailian's JSON lines: follow-ups that name their parent, bursts, steps of 1 ms."""
    rng = seed.rng()
    chats = _QwenChats(rng)
    at_ms = 0
    for row in range(rows):
        at_ms += int(heavy(rng, 140, 0, 20_000)) if row else 0
        chat, parent = chats.next(row)
        yield json.dumps(
            {
                "chat_id": chat.chat,
                "parent_chat_id": parent,
                "timestamp": at_ms / 1000,
                "input_length": chat.prompt,
                "output_length": chat.answer,
                "type": one_of(rng, ("text", "text", "text", "search", "file")),
                "turn": chat.turn,
                "hash_ids": chat.ids,
            }
        )
