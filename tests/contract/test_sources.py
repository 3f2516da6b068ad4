"""The laws of `workload/source.py` over every source, each alone, paced and prepopulated.

A seeded driver pops and ends requests in an order and at times of its own; what is asked must not
depend on it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice, pairwise, product, repeat
from random import Random
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet
from msgspec.structs import replace

from kv_cache.core.block import Block
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import Qos
from kv_cache.core.model import MODELS, ModelShape
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.schedule.intake import Intake
from kv_cache.workload.digest import DIGEST_BLOCKS, DIGEST_REQUESTS, schedule_digest
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.lengths import Fixed, Lengths, Uniform
from kv_cache.workload.mix import Mix, Mixed, Share
from kv_cache.workload.paced import Pace, Paced
from kv_cache.workload.prepopulated import (
    OBJECT_TOKENS,
    OBJECTS_PER_USER,
    Prepopulated,
    objects_to_populate,
)
from kv_cache.workload.prompts import Prompted, Prompts
from kv_cache.workload.qos import QosMix
from kv_cache.workload.quota import Counts, one
from kv_cache.workload.rag import (
    ChunkReuse,
    Ingested,
    Library,
    LibraryConfig,
    RetrievalConfig,
    Retriever,
    WithRetrievals,
)
from kv_cache.workload.ranks import Ranked, Ranks
from kv_cache.workload.renamed import Renamed
from kv_cache.workload.replay import ReplayConfig, TraceReplay
from kv_cache.workload.row_requests import RowRequestsConfig
from kv_cache.workload.sessions import SessionReplay, SessionsConfig
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.users import MAX_STREAM_TOKENS, Persona, SyntheticUsers, UsersConfig
from tests.covering import by_day, covering

MODEL = MODELS["tiny-1b"]
QOS = QosMix(interactive=0.15, responsive_below=0.5, priorities=(3, 2, 1))
PERSONAS = (
    Persona(
        name="short", context_range=(20, 300), generation_range=(5, 40), think_time_range=(0.1, 0.5)
    ),
    Persona(
        name="long", context_range=(100, 900), generation_range=(10, 80), think_time_range=(0.2, 1)
    ),
)
USERS = 6
ROWS = 25
POPS = 130
Make = Callable[..., Source]
"""A source from a seed, the `max_requests` that those who share them out are told, and (of a source
that nothing is put around) what each request counts."""


def geometry(block_tokens: int, model: ModelShape = MODEL, ranks: int = 1) -> Geometry:
    return Geometry(model=model, tensor_parallel=ranks, block_tokens=block_tokens)


def users_config(
    *, closed: bool = True, multi_turn: bool = True, block_tokens: int = 0, thinks: bool = True
) -> UsersConfig:
    return UsersConfig(
        num_users=USERS,
        personas=PERSONAS,
        qos=QOS,
        geometry=geometry(block_tokens),
        closed=closed,
        thinks=thinks,
        multi_turn=multi_turn,
        max_turns=5,
        prompt_probability=0.5,
        prompts=Prompts(lengths=(40, 300, 7)),
    )


def trace_rows(*, hashed: bool) -> list[TraceRow]:
    """Rows in bursts; with hash ids, later rows begin like earlier ones."""
    rng = Random(5)
    rows, at_ns = [], 0
    for line in range(1, ROWS + 1):
        ids = (*range(rng.randrange(1, 4)), 100 + line) if hashed else None
        prompt = 256 * len(ids) - rng.randrange(256) if ids else rng.randrange(1, 900)
        rows.append(TraceRow(line, at_ns, prompt, rng.randrange(50), ids, 256 if hashed else 0))
        at_ns += rng.choice((0, 0, 7, 1_000_003, 900_000_000))
    return rows


def talking_rows() -> list[TraceRow]:
    """Rows of a few sessions between each other, and rows that name those that they follow."""
    rows = []
    for row in trace_rows(hashed=False):
        if row.line % 3 == 0:
            session = f"../s{row.line % 4}"
            rows.append(row._replace(session=session, adds=True, think_ns=row.line * 1000))
        elif row.line % 3 == 1:
            after = (f"r{row.line - 3}",) if row.line > 3 else ()
            rows.append(row._replace(name=f"r{row.line}", after=after))
        else:
            rows.append(row)
    return rows


ROWS_OF = {
    "plain": lambda: trace_rows(hashed=False),
    "hashed": lambda: trace_rows(hashed=True),
    "talking": talking_rows,
}


def replay(
    seed: Seed, most: int = 0, counts: Counts = one, *, kind: str, speedup: float, cycles: int,
    block_tokens: int, arrival_scale: float = 1.0,
) -> TraceReplay:  # fmt: skip
    rows = ROWS_OF[kind]()
    config = ReplayConfig(
        requests=asking(block_tokens, 256 if kind == "hashed" else 0),
        speedup=speedup,
        arrival_scale=arrival_scale,
        cycles=cycles,
    )
    return TraceReplay(lambda: iter(rows), config, seed, {"rows": len(rows)}, most, counts)


def asking(block_tokens: int, trace_block_tokens: int = 0) -> RowRequestsConfig:
    return RowRequestsConfig(
        geometry=geometry(block_tokens), qos=QOS, trace_block_tokens=trace_block_tokens
    )


def session_rows(*, agents: bool) -> list[TraceRow]:
    """Sessions one behind the other: turns of a conversation, or an agent with sub-agents."""
    rng = Random(6)
    rows: list[TraceRow] = []
    for number in range(9):
        session = f"s/{number}"
        for turn in range(rng.randrange(1, 6)):
            line, prompt, output = len(rows) + 1, rng.randrange(1, 700), rng.randrange(1, 60)
            if not agents:
                rows.append(TraceRow(line, 0, prompt, output, session=session, adds=True))
                continue
            ids = (*range(1 + turn), 100 + line)
            after: tuple[str, ...] = (f"{turn - 1}",) if turn else ()
            if turn == 3:
                after = ("1", "2")  # 1 and 2 are sub-agents of 0, which 3 joins
            elif turn == 2:
                after = ("0",)
            rows.append(
                TraceRow(
                    line,
                    turn * 10**9,
                    256 * len(ids),
                    output,
                    ids,
                    256,
                    session,
                    f"{turn}",
                    after,
                    rng.randrange(10**9),
                    scope=session,
                )
            )
    return rows


def sessions(
    seed: Seed, most: int = 0, counts: Counts = one, *, agents: bool, speedup: float, cycles: int,
    block_tokens: int,
) -> SessionReplay:  # fmt: skip
    rows = session_rows(agents=agents)
    config = SessionsConfig(
        requests=asking(block_tokens, 256 if agents else 0),
        users=4,
        speedup=speedup,
        cycles=cycles,
    )
    return SessionReplay(lambda: iter(rows), config, seed, {"rows": len(rows)}, most, counts)


def users_makers() -> Iterator[tuple[str, Make]]:
    for closed, multi_turn, block_tokens in product((True, False), (True, False), (0, 16, 256)):
        config = users_config(closed=closed, multi_turn=multi_turn, block_tokens=block_tokens)
        loop, talk = ("closed" if closed else "open"), ("talk" if multi_turn else "ask")
        yield f"users-{loop}-{talk}-{block_tokens}", partial(SyntheticUsers, config)
    yield "users-closed-impatient", partial(SyntheticUsers, users_config(thinks=False))


def replay_makers() -> Iterator[tuple[str, Make]]:
    for kind, speedup, (cycles, block_tokens) in product(
        ROWS_OF, (0.0, 1.0, 10.0), ((1, 0), (1, 256), (3, 0), (3, 16))
    ):
        yield (
            f"trace-{kind}-x{speedup:g}-{cycles}-{block_tokens}",
            partial(replay, kind=kind, speedup=speedup, cycles=cycles, block_tokens=block_tokens),
        )
    for scale in (0.25, 4.0):
        make = partial(replay, kind="talking", speedup=2.0, cycles=2, block_tokens=16)
        yield f"trace-scaled-{scale}", partial(make, arrival_scale=scale)


def session_makers() -> Iterator[tuple[str, Make]]:
    for agents, speedup, (cycles, block_tokens) in product(
        (True, False), (0.0, 3.0), ((1, 0), (0, 256), (3, 16))
    ):
        yield (
            f"sessions-{'agents' if agents else 'talks'}-x{speedup:g}-{cycles}-{block_tokens}",
            partial(
                sessions, agents=agents, speedup=speedup, cycles=cycles, block_tokens=block_tokens
            ),
        )


def paced(make: Make, process: str) -> Make:
    pace = Pace(rate=5.0, process=process, cv=3.0)
    return lambda seed, most: Paced(make(seed, most), pace, seed.child("pace"))


def prepopulated(make: Make) -> Make:
    objects = objects_to_populate(geometry(256), 3, None)
    return lambda seed, most: Prepopulated(make(seed, most), objects, seed.child("pre"), 30)


def renamed(make: Make) -> Make:
    return lambda seed, most: Renamed(make(seed, most), "again")


def mixed(make: Make) -> Make:
    shares = [
        Share(name=name, weight=weight, geometry=geometry(16, MODELS[name]))
        for name, weight in (("tiny-1b", 2.0), ("deepseek-v3", 1.0))
    ]
    return lambda seed, most: Mixed(make(seed, most), Mix(shares, seed.child("mix")))


def ranked(make: Make) -> Make:
    return lambda seed, most: Ranked(make(seed, most), Ranks(4, {"": MODEL}))


def prompted(make: Make) -> Make:
    prompts = Prompts(lengths=(40, 600, 300), popularity="zipf")
    return lambda seed, most=0, counts=one: Prompted(
        make(seed, most, counts), prompts, geometry(16), 0.6, seed.child("prompts")
    )


def retriever(seed: Seed, reuse: ChunkReuse = ChunkReuse.INDEPENDENT) -> Retriever:
    library = Library(
        LibraryConfig(
            geometry=geometry(16), documents=4, document_tokens=(100, 400), chunk_tokens=60
        ),
        seed.child("documents"),
    )
    config = RetrievalConfig(
        top_k=3, probability=0.4, zipf=True, reuse=reuse, question_tokens=9, answer_tokens=(5, 20)
    )
    return Retriever(library, config, seed.child("rag"), Ingested(library, 2))


def retrieving(make: Make, reuse: ChunkReuse = ChunkReuse.INDEPENDENT) -> Make:
    def made(seed: Seed, most: int = 0) -> Source:
        what = retriever(seed, reuse)
        return WithRetrievals(make(seed, most, what.counts), what, most)

    return made


def all_makers() -> Iterator[tuple[str, Make]]:
    plain = {**dict(users_makers()), **dict(replay_makers()), **dict(session_makers())}
    yield from plain.items()
    for name, make in plain.items():
        yield f"renamed-{name}", renamed(make)
    for name, make in plain.items():
        for process in ("fixed", "poisson", "gamma"):
            yield f"{process}-{name}", paced(make, process)
        yield f"prepopulated-{name}", prepopulated(make)
    for name, make in islice(plain.items(), 0, None, 3):
        yield f"rag-{name}", retrieving(make)
        if not name.startswith("users"):
            yield f"prompted-{name}", prompted(make)
        yield f"mixed-{name}", mixed(make)
        yield f"ranked-{name}", ranked(make)
    laws = Lengths(prompt=Fixed(value=90), turns=Uniform(low=1, high=4, steps=True))
    lawful = replace(users_config(block_tokens=16), lengths=laws)
    yield "users-closed-laws", partial(SyntheticUsers, lawful)
    users = plain["users-closed-talk-16"]
    yield "rag-prefix-users", retrieving(users, ChunkReuse.PREFIX)
    yield "rag-prompted-sessions", retrieving(prompted(plain["sessions-talks-x3-3-16"]))
    pace = Pace(rate=5.0, process="poisson")
    yield (
        "rag-poisson-users",
        retrieving(lambda seed, most, counts: Paced(users(seed, most, counts), pace, seed)),
    )
    yield (
        "prepopulated-poisson-users",
        prepopulated(paced(plain["users-closed-talk-16"], "poisson")),
    )


SOURCES = dict(all_makers())
LIMITED = [n for n in SOURCES if "users" in n or "sessions" in n]  # these share max_requests out


TRIED = covering({name: name.split("-") for name in SOURCES})
"""Each two choices (the words of a name) come together in one of these, if they do in any."""


def tried(names: Iterable[str], values: Mapping[str, object]) -> list[ParameterSet]:
    return by_day({name: (values[name],) for name in names}, TRIED)


NAMES = {name: name for name in SOURCES}
every_source = pytest.mark.parametrize("make", tried(SOURCES, SOURCES))


class Ask(NamedTuple):
    """Everything that is asked, but not when."""

    user: str
    conversation: str
    turn: int
    qos: Qos
    priority: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[Block, ...]
    shared: int
    new_from: int
    tail_tokens: int


def ask(request: Request) -> Ask:
    return Ask(*(getattr(request, name) for name in Ask._fields))


class Driven(NamedTuple):
    requests: list[Request]
    popped_ns: list[int]
    ended: bool


def drive(source: Source, chance: Seed, pops: int = POPS) -> Driven:
    """Pop and end requests by chance, checking the laws that hold at every step."""
    rng = chance.rng()
    now_ns, was_exhausted = 0, False
    outstanding: list[Request] = []
    requests: list[Request] = []
    popped_ns: list[int] = []
    while outstanding or not source.exhausted:
        due_ns = source.next_ns()
        assert due_ns == source.next_ns(), "law 1: looking changes nothing"
        may_pop = due_ns is not None and len(requests) < pops
        if may_pop and (not outstanding or rng.random() < 0.6):
            assert due_ns is not None
            now_ns = max(now_ns, due_ns) + rng.choice((0, 0, 3, 200_000_000))
            request = source.pop(now_ns)
            assert request.request_id == len(requests), "law 2: ids count up from 0"
            asked_ns = now_ns if source.on_demand else due_ns
            assert request.intended_ns <= asked_ns
            assert request.intended_ns == asked_ns or source.describe()["loop"] == "closed"
            requests.append(request)
            popped_ns.append(now_ns)
            outstanding.append(request)
        elif outstanding:
            now_ns += rng.choice((0, 1, 50_000_000, 2_000_000_000))
            source.after(outstanding.pop(rng.randrange(len(outstanding))), now_ns)
        else:
            assert len(requests) >= pops, "nothing is due, nothing is in flight, and it never ends"
            break
        assert not (was_exhausted and not source.exhausted), "law 4: an end is an end"
        was_exhausted = source.exhausted
        if was_exhausted:
            assert source.next_ns() is None, "law 4: an end has no next"
            assert not outstanding, "it ended before its last request did"
    return Driven(requests, popped_ns, source.exhausted)


def by_user(requests: list[Request]) -> dict[str, list[Ask]]:
    series: dict[str, list[Ask]] = defaultdict(list)
    for request in requests:
        series[request.user].append(ask(request))
    return series


def each_begins_the_other(one: list[Ask], other: list[Ask]) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


@every_source
def test_the_laws_hold_whatever_the_order_and_speed_of_service(make: Make) -> None:
    for chance in range(2):
        driven = drive(make(Seed(1), 0), Seed(chance))
        assert driven.ended == (len(driven.requests) < POPS)
        for request in driven.requests:
            assert 0 <= request.shared <= request.new_from <= len(request.blocks)
            assert request.output_tokens >= 0
            assert request.prompt_tokens >= 1
            assert request.tail_tokens >= 0


@every_source
def test_what_is_asked_depends_on_the_seed_alone(make: Make) -> None:
    first = by_user(drive(make(Seed(1), 0), Seed(10)).requests)
    second = by_user(drive(make(Seed(1), 0), Seed(11)).requests)
    for user in first.keys() & second.keys():
        assert each_begins_the_other(first[user], second[user])
    assert first.keys() & second.keys()


@every_source
def test_the_plan_tells_the_same_requests_and_changes_nothing(make: Make) -> None:
    source = make(Seed(1), 0)
    planned = list(islice(source.plan(), POPS))
    assert [r.request_id for r in planned] == list(range(len(planned)))
    assert list(islice(source.plan(), POPS)) == planned, "a plan is a fresh walk"
    driven = drive(source, Seed(3)).requests
    assert driven == drive(make(Seed(1), 0), Seed(3)).requests, "the plan changed the source"
    assert list(islice(source.plan(), POPS)) == planned, "driving changed the plan"
    asked, told = by_user(driven), by_user(planned)
    for user in asked.keys() & told.keys():
        assert each_begins_the_other(asked[user], told[user])


@every_source
def test_another_seed_asks_for_something_else_and_has_another_digest(make: Make) -> None:
    one, again, other = (make(Seed(n), 0) for n in (1, 1, 2))
    digests = [schedule_digest(source.plan(), 60) for source in (one, again, other)]
    assert digests[0] == digests[1]
    if "rag_documents" not in one.describe():  # else the seed says how many retrieve
        assert digests[0].requests == digests[2].requests
    assert digests[0].sha256 != digests[2].sha256


def test_a_large_max_requests_costs_nothing_before_it_is_used() -> None:
    source = SyntheticUsers(users_config(), Seed(4), 10**12)
    assert len(drive(source, Seed(1)).requests) == POPS


@pytest.mark.parametrize("name", tried(LIMITED, NAMES))
@pytest.mark.parametrize("most", [1, 40])
def test_max_requests_sends_exactly_the_first_of_the_plan(name: str, most: int) -> None:
    make = SOURCES[name]
    planned = sorted(map(ask, islice(make(Seed(4), most).plan(), most)))
    for chance in range(3):
        driven = drive(make(Seed(4), most), Seed(chance), pops=most + 1)
        assert driven.ended
        assert sorted(map(ask, driven.requests)) == planned


@pytest.mark.parametrize(
    "name",
    tried([n for n in SOURCES if n.startswith(("users", "trace", "sess", "rag"))], NAMES),
)
def test_behind_the_intake_max_requests_is_exact_too(name: str) -> None:
    most = 20
    planned = sorted(map(ask, islice(SOURCES[name](Seed(4), most).plan(), most)))
    source = SOURCES[name](Seed(4), most)
    intake = Intake(source, queue_limit=1000, ageing_ns=10**9, max_requests=most)
    rng, now_ns = Random(1), 0
    serving: list[Request] = []
    asked: list[Ask] = []
    while not intake.finished:
        if (queued := intake.take(now_ns)) is not None:
            asked.append(ask(queued.request))
            serving.append(queued.request)
        if serving and (queued is None or rng.random() < 0.5):
            intake.finish(serving.pop(rng.randrange(len(serving))), now_ns)
        now_ns += rng.randrange(10**9)
    assert intake.submitted == most
    assert sorted(asked) == planned


@every_source
def test_a_source_describes_itself_in_plain_values(make: Make) -> None:
    facts = make(Seed(1), 0).describe()
    assert facts["source"] in ("synthetic-users", "trace", "sessions")
    assert all(
        isinstance(value, str | int | float | list | dict | None) for value in facts.values()
    )


# --- users who come and go ---------------------------------------------------------------


def served(source: Source, chance: Seed, sizes: tuple[int, ...]) -> dict[str, list[Ask]]:
    """Every so many requests the number of users changes; all that was asked, by user."""
    rng, now_ns = chance.rng(), 0
    outstanding: list[Request] = []
    asked: list[Request] = []
    for users in sizes:
        assert source.users is not None
        source.resize(users, now_ns)
        assert source.users == users, "law 7: as many as were asked for"
        for _ in range(60):
            due_ns = source.next_ns()
            if due_ns is not None and (not outstanding or rng.random() < 0.6):
                now_ns = max(now_ns, due_ns)
                asked.append(source.pop(now_ns))
                outstanding.append(asked[-1])
            else:
                assert outstanding, "law 7: with users left, somebody asks or waits"
                source.after(outstanding.pop(rng.randrange(len(outstanding))), now_ns)
                now_ns += rng.randrange(10**7)
    return by_user(asked)


RESIZED = [name for name, make in SOURCES.items() if make(Seed(1), 0).users is not None]


@pytest.mark.parametrize("name", tried(RESIZED, NAMES))
def test_users_who_stay_ask_the_same_whoever_comes_and_goes(name: str) -> None:
    steady = by_user(drive(SOURCES[name](Seed(1), 0), Seed(2), pops=600).requests)
    moving = served(SOURCES[name](Seed(1), 0), Seed(3), (USERS, 20, 3, 9, USERS, 12, 2))
    first = sorted(steady)[:2]  # the last to come are the first to leave
    for user in first:
        assert each_begins_the_other(steady[user], moving[user])
        assert len(moving[user]) > 5


@pytest.mark.parametrize(
    "name", tried([n for n in RESIZED if n.startswith(("users", "renamed"))], NAMES)
)
def test_who_comes_back_is_somebody_else_and_finds_nothing_of_whom_was_there(name: str) -> None:
    source = SOURCES[name](Seed(1), 0)
    asked = served(source, Seed(3), (USERS, 2, USERS, 2, USERS))
    came = {user for user in asked if "." in user}
    assert came, "nobody came back"
    owners: dict[bytes, set[str]] = defaultdict(set)
    for user, series in asked.items():
        for each in series:
            for block in each.blocks[each.shared :]:
                owners[block.key].add(user)
    assert all(len(users) == 1 for users in owners.values())


def test_who_has_left_asks_nothing_more_even_when_answered_late() -> None:
    source = SyntheticUsers(users_config(), Seed(1))
    first = [source.pop(source.next_ns() or 0) for _ in range(USERS)]
    assert source.next_ns() is None
    source.resize(1, 5)
    for request in first:
        source.after(request, 10)
    assert source.pop(source.next_ns() or 0).user == "user_0000"
    assert source.next_ns() is None
    assert not source.exhausted


def test_the_same_work_under_other_names_shares_no_block_with_it() -> None:
    for name in ("users-closed-talk-0", "trace-hashed-x1-1-256"):
        plain = drive(SOURCES[name](Seed(1), 0), Seed(2)).requests
        other = drive(SOURCES[f"renamed-{name}"](Seed(1), 0), Seed(2)).requests
        mine = {block.key for request in plain for block in request.blocks}
        theirs = {block.key for request in other for block in request.blocks}
        assert not mine & theirs
        assert len(mine) == len(theirs), "what was one block is one block"
        assert [r.intended_ns for r in plain] == [r.intended_ns for r in other]


# --- users ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_tokens", [0, 16, 256])
def test_a_conversation_goes_on_where_its_last_turn_ended(block_tokens: int) -> None:
    source = SyntheticUsers(users_config(block_tokens=block_tokens), Seed(1))
    turns: dict[str, list[Request]] = defaultdict(list)
    for request in drive(source, Seed(2), pops=400).requests:
        turns[request.conversation].append(request)
    assert max(map(len, turns.values())) == 5, "no conversation reached max_turns"
    for requests in turns.values():
        assert [r.turn for r in requests] == list(range(1, len(requests) + 1))
        assert requests[0].new_from == requests[0].shared
        for earlier, later in pairwise(requests):
            assert later.blocks[: later.new_from] == earlier.blocks
            assert (later.shared, later.user, later.qos) == (
                earlier.shared,
                earlier.user,
                earlier.qos,
            )


def test_without_conversations_every_request_is_a_first_turn_of_its_own() -> None:
    source = SyntheticUsers(users_config(multi_turn=False), Seed(1))
    requests = drive(source, Seed(2)).requests
    assert len({r.conversation for r in requests}) == len(requests)
    assert {r.turn for r in requests} == {1}
    assert all(len(r.blocks) == r.shared + 1 for r in requests)


def test_users_beyond_the_limit_of_conversations_ask_single_questions() -> None:
    config = replace(users_config(), max_conversations=2)
    talked = {
        r.user for r in drive(SyntheticUsers(config, Seed(1)), Seed(2)).requests if r.turn > 1
    }
    assert talked == {"user_0000", "user_0001"}


@pytest.mark.parametrize("block_tokens", [0, 16, 256])
def test_users_share_the_keys_of_a_prompt_and_of_nothing_else(block_tokens: int) -> None:
    source = SyntheticUsers(users_config(block_tokens=block_tokens), Seed(1))
    owners: dict[bytes, set[str]] = defaultdict(set)
    prompts: dict[tuple[bytes, ...], set[str]] = defaultdict(set)
    for request in drive(source, Seed(2), pops=300).requests:
        for each in request.blocks[request.shared :]:
            owners[each.key].add(request.conversation)
        if request.shared:
            prompts[tuple(b.key for b in request.blocks[: request.shared])].add(request.user)
    assert all(len(conversations) == 1 for conversations in owners.values())
    assert len(prompts) == {0: 3, 16: 2, 256: 1}[block_tokens], "of 40, 300 and 7 tokens"
    assert all(len(users) > 1 for users in prompts.values())
    shared = {key for keys in prompts for key in keys}
    assert not shared & owners.keys()


@pytest.mark.parametrize("block_tokens", [16, 256])
def test_whole_blocks_and_the_tail_are_the_whole_prompt(block_tokens: int) -> None:
    source = SyntheticUsers(users_config(block_tokens=block_tokens), Seed(1))
    for request in drive(source, Seed(2), pops=300).requests:
        whole = sum(b.tokens for b in request.blocks)
        assert whole + request.tail_tokens == request.prompt_tokens
        assert request.tail_tokens < block_tokens
        assert all(b.tokens == block_tokens for b in request.blocks)


def test_a_conversation_does_not_outgrow_the_longest_context() -> None:
    wide = Persona(
        name="w",
        context_range=(40_000, 60_000),
        generation_range=(5, 10),
        think_time_range=(0.1, 0.2),
    )
    config = replace(users_config(block_tokens=256), personas=(wide,), end_probability=0.0)
    requests = drive(SyntheticUsers(config, Seed(1)), Seed(2)).requests
    assert max(r.prompt_tokens for r in requests) <= MAX_STREAM_TOKENS
    assert max(r.turn for r in requests) > 1


def test_what_a_user_asks_does_not_depend_on_how_many_others_there_are() -> None:
    few = by_user(drive(SyntheticUsers(users_config(), Seed(1)), Seed(2)).requests)
    config = replace(users_config(), num_users=3 * USERS)
    many = by_user(drive(SyntheticUsers(config, Seed(1)), Seed(2)).requests)
    for user, series in few.items():
        assert each_begins_the_other(series, many[user])


def test_a_closed_user_thinks_after_his_answer_and_an_open_one_does_not_wait() -> None:
    for closed in (True, False):
        config = replace(users_config(closed=closed), num_users=1)
        source = SyntheticUsers(config, Seed(1))
        due_ns = source.next_ns()
        assert due_ns is not None
        request = source.pop(due_ns)
        if closed:
            assert source.next_ns() is None
            source.after(request, due_ns + 10**12)
            assert (source.next_ns() or 0) > due_ns + 10**12
        else:
            assert due_ns < (source.next_ns() or 0) < due_ns + 2 * 10**9


@pytest.mark.parametrize("block_tokens", [0, 16])
@pytest.mark.parametrize(
    ("model", "ranks"), [("tiny-1b", 1), ("llama3.1-8b", 4), ("deepseek-v3", 4)]
)
def test_sizes_follow_the_geometry_of_the_model(model: str, ranks: int, block_tokens: int) -> None:
    shape = MODELS[model]
    config = replace(users_config(), geometry=geometry(block_tokens, shape, ranks))
    share = 1 if model == "deepseek-v3" else ranks
    requests = drive(SyntheticUsers(config, Seed(1)), Seed(2)).requests
    for request in requests:
        for each in request.blocks:
            assert each.nbytes == each.tokens * shape.bytes_per_token // share
        if not block_tokens:
            assert request.blocks[-1].tokens == request.prompt_tokens
    assert any(r.total_bytes for r in requests)


# --- traces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("speedup", [0.0, 1.0, 10.0])
def test_a_cycle_ends_with_its_last_request_and_not_with_its_last_row(speedup: float) -> None:
    source = replay(Seed(1), kind="hashed", speedup=speedup, cycles=2, block_tokens=256)
    out: list[Request] = []
    now_ns = 0
    for _ in range(2):
        while (due_ns := source.next_ns()) is not None:
            now_ns = max(now_ns, due_ns)
            out.append(source.pop(now_ns))
        assert len(out) == ROWS
        assert not source.exhausted
        for request in out[1:]:
            source.after(request, now_ns)
            assert source.next_ns() is None
            assert not source.exhausted
        now_ns += 10**12
        source.after(out[0], now_ns)
        out.clear()
        if not source.exhausted:
            assert source.next_ns() == now_ns, "the next cycle begins when the last has ended"
    assert source.exhausted
    assert source.describe()["cycles_ended"] == 2


@pytest.mark.parametrize("speedup", [1.0, 10.0, 0.5])
def test_rows_arrive_at_the_traces_times_divided_by_the_speedup(speedup: float) -> None:
    source = replay(Seed(1), kind="plain", speedup=speedup, cycles=1, block_tokens=0)
    wanted = [round(row.at_ns / speedup) for row in trace_rows(hashed=False)]
    assert [r.intended_ns for r in source.plan()] == wanted
    assert [r.intended_ns for r in drive(source, Seed(1)).requests] == wanted


def test_hash_ids_share_blocks_exactly_where_the_trace_says_so() -> None:
    rows = trace_rows(hashed=True)
    for block_tokens, parts in ((256, 1), (64, 4)):
        source = replay(Seed(1), kind="hashed", speedup=0, cycles=2, block_tokens=block_tokens)
        keys: dict[tuple[int, int | str, int], set[bytes]] = defaultdict(set)
        for number, request in enumerate(source.plan()):
            assert request.cycle == number // ROWS
            row = rows[number % ROWS]
            assert row.hash_ids is not None
            assert len(request.blocks) == -(-row.prompt_tokens // block_tokens)
            assert request.prompt_tokens == request.context_tokens == row.prompt_tokens
            for place, each in enumerate(request.blocks):
                name = (request.cycle, row.hash_ids[place // parts], place % parts)
                keys[name].add(each.key)
                assert each.tokens == block_tokens
        assert all(len(found) == 1 for found in keys.values())
        assert len({next(iter(found)) for found in keys.values()}) == len(keys)


def test_rows_without_hash_ids_never_share_not_even_with_themselves_in_the_next_cycle() -> None:
    for block_tokens in (0, 16):
        source = replay(Seed(1), kind="plain", speedup=0, cycles=3, block_tokens=block_tokens)
        keys = [b.key for request in source.plan() for b in request.blocks]
        assert len(keys) == len(set(keys))


def test_a_block_size_that_does_not_divide_the_traces_is_refused() -> None:
    with pytest.raises(TraceError, match="divisor of 256"):
        replay(Seed(1), kind="hashed", speedup=0, cycles=1, block_tokens=100)


# --- pace ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["fixed", "poisson", "gamma"])
def test_gaps_have_the_mean_of_the_rate_and_are_never_negative(process: str) -> None:
    gaps = list(islice(Pace(rate=50, process=process, cv=2.0).gaps_ns(Seed(3)), 40_000))
    assert min(gaps) >= 0
    assert sum(gaps) / len(gaps) == pytest.approx(20_000_000, rel=0.05)
    if process == "fixed":
        assert set(gaps) == {20_000_000}


def test_an_arrival_is_never_before_its_slot_and_late_users_are_waited_for() -> None:
    pace = Pace(rate=5.0)
    for closed in (True, False):
        config = users_config(closed=closed, thinks=False)
        driven = drive(Paced(SyntheticUsers(config, Seed(1)), pace, Seed(1)), Seed(2))
        slots = [200_000_000 * k for k in range(1, len(driven.requests) + 1)]
        intended = [r.intended_ns for r in driven.requests]
        assert all(at >= slot for at, slot in zip(intended, slots, strict=True))
        if not closed:
            assert intended == slots


def test_a_request_that_waited_for_a_user_counts_from_its_slot() -> None:
    """Else what nobody was free to ask would be in no latency (coordinated omission)."""
    config = users_config(closed=True, thinks=False)
    paced = Paced(SyntheticUsers(config, Seed(1)), Pace(rate=5.0), Seed(1), from_slots=True)
    driven = drive(paced, Seed(2))
    intended = [r.intended_ns for r in driven.requests]
    assert intended == [200_000_000 * k for k in range(1, len(intended) + 1)]


# --- prepopulated --------------------------------------------------------------------------------


@pytest.mark.parametrize("block_tokens", [0, 16, 256, 4096])
def test_objects_are_as_many_as_wanted_or_as_fit(block_tokens: int) -> None:
    where = geometry(block_tokens)
    objects = objects_to_populate(where, 4, None)
    assert len(objects) == 4 * OBJECTS_PER_USER
    tokens = max(block_tokens, OBJECT_TOKENS)
    assert all(sum(b.tokens for b in each) == tokens for each in objects)
    keys = [b.key for each in objects for b in each]
    assert len(keys) == len(set(keys))
    per_object = tokens * MODEL.bytes_per_token
    fitting = objects_to_populate(where, 4, 10 * per_object)
    assert fitting == objects[:9]
    assert objects_to_populate(where, 4, 1) == objects[:1]


def test_every_request_reads_one_of_the_objects_and_together_they_read_most() -> None:
    objects = objects_to_populate(geometry(256), 3, None)
    make = SOURCES["prepopulated-users-closed-talk-16"]
    requests = drive(make(Seed(1), 0), Seed(2)).requests
    read = {r.blocks for r in requests}
    assert read <= set(objects)
    assert len(read) > len(objects) // 2
    assert all(r.prompt_tokens == OBJECT_TOKENS for r in requests)
    assert all((r.shared, r.new_from, r.tail_tokens) == (0, 0, 0) for r in requests)


# --- digest --------------------------------------------------------------------------------------


def plan_of(count: int) -> list[Request]:
    return list(islice(SyntheticUsers(users_config(), Seed(1)).plan(), count))


@pytest.mark.parametrize(
    "change",
    [
        {"intended_ns": 1},
        {"user": "x"},
        {"conversation": "x"},
        {"turn": 99},
        {"qos": Qos.BATCH},
        {"prompt_tokens": 1},
        {"output_tokens": 0},
        {"shared": 9},
        {"new_from": 9},
        {"tail_tokens": 9},
        {"blocks": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_anything_that_is_asked_differently_changes_the_digest(change: dict[str, object]) -> None:
    plan = plan_of(10)
    plan[4] = replace(plan[4], qos=Qos.INTERACTIVE)
    changed = [*plan]
    changed[4] = replace(plan[4], **change)
    assert schedule_digest(iter(plan)).sha256 != schedule_digest(iter(changed)).sha256


def test_the_digest_covers_what_is_sent_up_to_its_bound() -> None:
    assert schedule_digest(iter(plan_of(10))).requests == 10
    assert schedule_digest(iter(plan_of(10)), 4) == schedule_digest(iter(plan_of(4)))
    endless = SyntheticUsers(users_config(), Seed(1)).plan()
    assert schedule_digest(endless, 10**9).requests == DIGEST_REQUESTS
    (long,) = plan_of(1)
    long = replace(long, blocks=long.blocks[:1] * (DIGEST_BLOCKS // 10 + 1))
    assert schedule_digest(repeat(long)).requests == 10
