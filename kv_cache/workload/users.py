"""Synthetic users: personas who talk in turns and think between them.

The personas, the class mix and the way lengths are drawn are those of the MLPerf Storage KV-cache
benchmark: a user has a context and an answer length, and each request draws between a quarter of it
and all of it. Two things differ, on purpose. A user waits for the answer before he
thinks (`closed`; `--arrival open` is the reference's user, who does not). And every draw comes
from the user's child seed, so what user 7 asks for does not depend on how fast others are served.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kv_cache.core.block import Block, content_key
from kv_cache.core.kinds import Qos
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import s_to_ns
from kv_cache.workload.lengths import Lengths, whole
from kv_cache.workload.prompts import Prompts
from kv_cache.workload.qos import QosMix
from kv_cache.workload.quota import Counts, Quota, one
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import answered_at_once

MAX_STREAM_TOKENS = 131_072
"""A conversation that grows beyond this context (Llama 3.1's) starts anew. If first prompts have a
law whose longest is longer, it may grow to that."""


class Persona(Struct, frozen=True, kw_only=True):
    """Ranges are inclusive; think time is in seconds."""

    name: str
    context_range: tuple[int, int]
    generation_range: tuple[int, int]
    think_time_range: tuple[float, float]


class UsersConfig(Struct, frozen=True, kw_only=True):
    num_users: int
    personas: tuple[Persona, ...]
    qos: QosMix
    geometry: Geometry
    closed: bool = True
    thinks: bool = True  # False where a request rate sets the pace instead
    multi_turn: bool = True
    max_conversations: int = 1000  # users beyond this many ask single questions
    max_turns: int = 50
    end_probability: float = 0.2
    lengths: Lengths = field(default_factory=Lengths)  # in place of what the personas say
    prompt_probability: float = 0.2
    prompts: Prompts | None = None  # that conversations may begin with
    population: Seed | None = None  # of who the users are, if not the seed of what they ask


_Drawn = partial[Request]
"""A request but for its number and instant."""


class _User:
    """One user's endless series of turns, independent of time."""

    def __init__(self, index: int, config: UsersConfig, seed: Seed, before: int = 0) -> None:
        """Make the user after `before` others of this index, who have left. A newcomer has their
        persona, class and pace, so that N users are always the same mix, and nothing else."""
        self._rng = rng = seed.child("user", index).rng()
        if config.population is not None:
            rng = config.population.child("user", index).rng()
        if before:
            self._rng = seed.child("user", index, before).rng()
        self._config = config
        persona = config.personas[rng.randrange(len(config.personas))]
        self.index = index
        self.name = f"user_{index:04d}.{before}" if before else f"user_{index:04d}"
        self.qos: Qos = config.qos.draw(rng)
        self._context = rng.randint(*persona.context_range)
        self._generation = rng.randint(*persona.generation_range)
        self._think_s = rng.uniform(*persona.think_time_range)
        self._talks = config.multi_turn and index < config.max_conversations
        first = config.lengths.first_prompt
        self._most_tokens = MAX_STREAM_TOKENS
        if first is not None:
            self._most_tokens = max(MAX_STREAM_TOKENS, whole(first.quantile(1.0)))
        self._conversations = 0
        self._turn = 0
        self._most_turns = config.max_turns
        self._turns_share = 0.5  # at which of their law the turns of its conversation lie
        self._blocks: tuple[Block, ...] = ()
        self._shared = 0
        self._tokens = 0  # of the conversation so far, answers included

    def draw(self) -> tuple[int, _Drawn]:
        """Return how long the user thinks before the next request, and that."""
        think_ns, prompt, output = self._numbers()
        if (
            self._ends()
            or not self._talks
            or (self._streams and self._tokens + prompt > self._most_tokens)
        ):
            self._begin()
            laws = self._config.lengths
            if laws.first_prompt is not None:
                share = laws.first_share(self._turns_share, self._rng.random())
                prompt = whole(laws.first_prompt.quantile(share))
        self._turn += 1
        turn = self._stream if self._streams else self._object
        return think_ns, turn(prompt, output)

    def _numbers(self) -> tuple[int, int, int]:
        """Draw think time, prompt and answer of the next request: from the configured laws, else
        from the persona."""
        rng, laws = self._rng, self._config.lengths
        think_s = self._think_s * rng.uniform(0.8, 1.2) if self._config.thinks else 0
        if laws.think_s is not None and self._config.thinks:
            think_s = laws.think_s.draw(rng)
        if laws.prompt is None:
            prompt = rng.randint(max(1, self._context // 4), self._context)
        else:
            prompt = whole(laws.prompt.draw(rng))
        if laws.output is None:
            output = rng.randint(max(1, self._generation // 4), self._generation)
        else:
            output = whole(laws.output.draw(rng))
        return s_to_ns(think_s), prompt, output

    def _ends(self) -> bool:
        """Return whether the next request begins a new conversation."""
        ends = self._rng.random() < self._config.end_probability
        planned = self._config.lengths.turns is not None  # when the conversation began
        return not self._turn or self._turn >= self._most_turns or (ends and not planned)

    @property
    def _streams(self) -> bool:
        return self._config.geometry.block_tokens > 0

    @property
    def _conversation(self) -> str:
        return f"{self.name}_conv_{self._conversations:05d}"

    def _begin(self) -> None:
        """Begin a conversation, perhaps with a prompt that others share."""
        config, geometry = self._config, self._config.geometry
        self._conversations += 1
        self._turn = self._tokens = self._shared = 0
        self._blocks = ()
        if config.lengths.turns is not None:
            self._turns_share = self._rng.random()
            self._most_turns = whole(config.lengths.turns.quantile(self._turns_share))
        shares = self._rng.random() < config.prompt_probability
        prompt = None if config.prompts is None else config.prompts.draw(self._rng)
        if config.prompts is None or prompt is None or not shares:
            return
        self._blocks = config.prompts.blocks(geometry, prompt)
        self._shared = len(self._blocks)
        if self._streams or not self._shared:  # what is not stored for others is the user's own
            self._tokens = prompt.tokens

    def _object(self, prompt: int, output: int) -> _Drawn:
        """Return a turn as one object; the history is the objects of the earlier turns."""
        new_from = len(self._blocks)
        prompt, self._tokens = prompt + self._tokens, 0
        key = content_key("turn", self._conversation, self._turn)
        self._blocks += (self._config.geometry.block(key, prompt),)
        return self._request(prompt, output, new_from, 0)

    def _stream(self, prompt: int, output: int) -> _Drawn:
        """Return a turn as blocks of a token stream: its prompt is the history and what is new."""
        geometry = self._config.geometry
        new_from = len(self._blocks)
        total = self._tokens + prompt
        more = total // geometry.block_tokens - new_from
        self._blocks += geometry.stream(("stream", self._conversation), new_from, max(0, more))
        self._tokens = total + output
        return self._request(total, output, new_from, total % geometry.block_tokens)

    def _request(self, prompt: int, output: int, new_from: int, tail: int) -> _Drawn:
        return partial(
            Request,
            user=self.name,
            conversation=self._conversation,
            turn=self._turn,
            qos=self.qos,
            priority=self._config.qos.priority(self.qos),
            prompt_tokens=prompt,
            output_tokens=output,
            blocks=self._blocks,
            shared=self._shared,
            new_from=new_from,
            tail_tokens=tail,
        )


class SyntheticUsers:
    """All users. In the closed loop a user's next intended instant is known when he is answered."""

    on_demand = False

    def __init__(
        self, config: UsersConfig, seed: Seed, max_requests: int = 0, counts: Counts = one
    ) -> None:
        """Make all users, who send `max_requests` in all (0 = no limit), each with what it
        `counts`."""
        self._config = config
        self._seed = seed
        self._users: list[_User] = []
        self._had: Counter[int] = Counter()  # users so far, by index
        self._ready: list[tuple[int, int, _User, _Drawn]] = []
        self._scheduled = 0
        self._popped = 0
        self._waiting: dict[int, _User] = {}
        self._quota = Quota(self.plan(), max_requests, counts) if max_requests else None
        self._come(config.num_users, 0)

    @property
    def exhausted(self) -> bool:
        return not self._ready and not self._waiting

    @property
    def users(self) -> int:
        return len(self._users)

    def resize(self, users: int, now_ns: int) -> None:
        """Let users come or leave; the last to come are the first to leave."""
        assert users >= 1, "without users a source would be exhausted"
        assert self._quota is None, "requests that are planned user by user need fixed users"
        if users > len(self._users):
            self._come(users, now_ns)
            return
        del self._users[users:]
        self._ready = [entry for entry in self._ready if self._stays(entry[2])]
        heapq.heapify(self._ready)

    def _come(self, users: int, now_ns: int) -> None:
        for index in range(len(self._users), users):
            user = _User(index, self._config, self._seed, self._had[index])
            self._had[index] += 1
            self._users.append(user)
            self._schedule(user, now_ns)

    def _stays(self, user: _User) -> bool:
        return user.index < len(self._users) and self._users[user.index] is user

    def next_ns(self) -> int | None:
        return self._ready[0][0] if self._ready else None

    def pop(self, now_ns: int) -> Request:
        intended_ns, _, user, drawn = heapq.heappop(self._ready)
        request = drawn(request_id=self._popped, intended_ns=intended_ns)
        self._waiting[self._popped] = user
        self._popped += 1
        if not self._config.closed:
            self._schedule(user, intended_ns)
        return request

    def after(self, request: Request, finished_ns: int) -> None:
        user = self._waiting.pop(request.request_id)
        if self._config.closed and self._stays(user):
            self._schedule(user, finished_ns)

    def plan(self) -> Iterator[Request]:
        """Walk the requests, each answered at once: the order that `max_requests` and the digest go
        by."""
        yield from answered_at_once(SyntheticUsers(replace(self._config, closed=False), self._seed))

    def describe(self) -> Mapping[str, Any]:
        classes = Counter(user.qos for user in self._users)
        return {
            "source": "synthetic-users",
            "users": self._config.num_users,
            "loop": "closed" if self._config.closed else "open",
            "personas": [p.name for p in self._config.personas],
            "multi_turn": self._config.multi_turn,
            "lengths": [
                {"of": name, **law} for name, law in self._config.lengths.as_config().items()
            ],
            **({} if self._config.prompts is None else self._config.prompts.describe()),
            **{f"{qos}_users": classes[qos] for qos in Qos},
        }

    def _schedule(self, user: _User, from_ns: int) -> None:
        if self._quota is not None and not self._quota.take(user.name):
            return
        think_ns, drawn = user.draw()
        heapq.heappush(self._ready, (from_ns + think_ns, self._scheduled, user, drawn))
        self._scheduled += 1
