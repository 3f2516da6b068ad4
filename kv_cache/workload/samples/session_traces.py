"""Datasets of sessions: conversations as text (ShareGPT, OpenAI's messages), agents' requests."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from kv_cache.core.seed import Seed
from kv_cache.workload.samples.draws import NewIds, below, heavy, one_of

# --- conversations ---

_WORDS = (
    "the", "of", "a", "cache", "block", "prefix", "request", "answer", "token", "model", "storage",
    "is", "in", "to", "and", "how", "what", "why", "long", "short", "read", "write", "naïve",
    "Größe", "память", "世界", "first", "again", "between", "latency", "please", "explain", "list",
    "compare", "with", "without", "example:\n", "1.", "2.", "(see above)", "\"quoted\"", "x = 3;",
)  # fmt: skip


def _text(rng: Random, median_words: float, most: float) -> str:
    return " ".join(one_of(rng, _WORDS) for _ in range(int(heavy(rng, median_words, 1, most))))


def _talk(rng: Random, number: int) -> list[tuple[str, str]]:
    """Return (who, text) of each message; a few are odd, as in the published files."""
    messages = []
    if number % 12 == 5:
        messages.append(("system", _text(rng, 30, 120)))
    if number % 6 == 2:  # cut out of a longer conversation: a model speaks first
        messages.append(("gpt", _text(rng, 90, 400)))
    for _ in range(1 + int(heavy(rng, 2.5, 0, 12))):
        messages += [("human", _text(rng, 18, 300)), ("gpt", _text(rng, 70, 500))]
    if number % 9 == 4:
        messages.append(("human", _text(rng, 18, 300)))
    return [] if number % 25 == 13 else messages


def sharegpt_text(seed: Seed, rows: int) -> str:
    """Return `rows` conversations in ShareGPT's form: one JSON list in one line, without its
    end."""
    rng = seed.rng()
    talks: list[dict[str, Any]] = []
    for number in range(rows):
        messages = [{"from": who, "value": text} for who, text in _talk(rng, number)]
        talks.append({"id": f"{seed.child(number).bits(4).hex()}_0", "conversations": messages})
    return json.dumps(talks, ensure_ascii=False)


_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


def messages_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield `rows` conversations in OpenAI's form, one a line; some contents are lists of parts."""
    rng = seed.rng()
    for number in range(rows):
        messages = [
            {"role": _ROLES[who], "content": [{"type": "text", "text": t}] if i == 2 else t}
            for i, (who, t) in enumerate(_talk(rng, number))
        ]
        yield json.dumps({"id": number, "messages": messages})


# --- agents ---

_BLOCK_TOKENS = 64
_MODELS = ("claude-opus-4-5", "claude-haiku-4-5")


class _Agent:
    """One agent's requests: the prompt grows by the answer and a tool's result."""

    def __init__(self, rng: Random, ids: NewIds, system: int, depth: int, begin_ms: int) -> None:
        self._rng = rng
        self._ids = ids
        self._depth = depth
        self._prompt = system + int(heavy(rng, 700, 50, 6_000))
        self._hashes: tuple[int, ...] = ()
        self.now_ms = begin_ms

    def nodes(self, turns: int, zero_ms: int) -> Iterator[dict[str, Any]]:
        """Yield requests and sub-agents; `t` counts from `zero_ms`."""
        think_ms = 0
        for turn in range(turns):
            node, api_ms = self._request(think_ms, zero_ms)
            yield node
            self.now_ms += api_ms
            if self._depth < 2 and turn + 1 < turns and self._rng.random() < 0.12:
                yield from self._helpers(zero_ms)
            think_ms = int(heavy(self._rng, 4_000, 50, 200_000))
            self.now_ms += think_ms

    def _request(self, think_ms: int, zero_ms: int) -> tuple[dict[str, Any], int]:
        rng = self._rng
        self._hashes = self._ids.cover(self._hashes, self._prompt // _BLOCK_TOKENS)
        answer = int(heavy(rng, 260, 8, 3_000))
        api_ms = 900 + answer * 18
        node = {
            "t": (self.now_ms - zero_ms) / 1000,
            "type": one_of(rng, ("n", "s")),
            "model": _MODELS[min(self._depth, 1)],
            "in": self._prompt,
            "out": answer,
            "hash_ids": self._hashes,
            "stop": "tool_use",
            "api_time": api_ms / 1000,
            "think_time": think_ms / 1000,
        }
        self._prompt += answer + int(heavy(rng, 500, 10, 8_000))
        if self._prompt > 60_000:  # the context is made shorter: another content from there on
            self._prompt //= 4
            self._hashes = self._hashes[:4]
        return node, api_ms

    def _helpers(self, zero_ms: int) -> Iterator[dict[str, Any]]:
        """Yield one or two sub-agents at the same time; this agent waits for both."""
        begin_ms, end_ms = self.now_ms, self.now_ms
        for _ in range(1 + below(self._rng, 2)):
            helper = _Agent(self._rng, self._ids, 900, self._depth + 1, begin_ms)
            requests = list(helper.nodes(1 + below(self._rng, 4), begin_ms))
            end_ms = max(end_ms, helper.now_ms)
            yield {"t": (begin_ms - zero_ms) / 1000, "type": "subagent", "requests": requests}
        self.now_ms = end_ms


def agentic_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield `rows` agent sessions, one a line: prompts that grow, sub-agents, think times."""
    for number in range(rows):
        child = seed.child(number)
        rng = child.rng()
        agent = _Agent(rng, NewIds(1), system=3_000, depth=0, begin_ms=0)
        nodes = list(agent.nodes(2 + int(heavy(rng, 6, 0, 30)), 0))
        yield json.dumps(
            {
                "id": f"trace_{number:04}",
                "models": _MODELS,
                "block_size": _BLOCK_TOKENS,
                "hash_id_scope": "local",
                "requests": nodes,
            },
            separators=(",", ":"),
        )
