"""The laws of `policy/admission/base.py` over every policy of the table, and what each is for."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.block import content_key
from kv_cache.policy.admission import ADMISSION, Admission, AdmissionRules, Candidate, MakeAdmission
from kv_cache.policy.admission.frequency import Frequency
from kv_cache.policy.admission.second_hit import SecondHit
from kv_cache.policy.admission.sketch import MOST, PERIOD, Sketch
from tests.property.test_eviction import lines_run

PAGE = 4096
CONTENTS = 40
KEYS = [content_key("content", number) for number in range(CONTENTS)]
RULES = AdmissionRules(max_bytes=2 * PAGE, max_depth=3, memory=16, floor=2)


def candidate(content: int, *, fresh: bool = False) -> Candidate:
    return Candidate(KEYS[content], PAGE * (1 + content % 4), content % 6, fresh)


class Call(NamedTuple):
    what: str  # offer, use or ask
    content: int
    rivals: tuple[int, ...] = ()
    fresh: bool = False


contents = st.integers(0, CONTENTS - 1)
calls = st.lists(
    st.builds(
        Call,
        st.sampled_from(("offer", "offer", "use", "ask")),
        contents,
        st.lists(contents, max_size=3).map(tuple),
        st.booleans(),
    ),
    max_size=60,
)


looks = st.builds(Call, st.just("ask"), contents, st.lists(contents, max_size=3).map(tuple))


def ask(policy: Admission, call: Call) -> str | None:
    rivals = [KEYS[r] for r in call.rivals] if policy.compares else []
    return policy.refusal(candidate(call.content, fresh=call.fresh), rivals)


def replay(policy: Admission, history: Sequence[Call]) -> list[str | None]:
    answers = []
    for call in history:
        if call.what == "use":
            policy.used(KEYS[call.content])
            continue
        answers.append(ask(policy, call))
        if call.what == "offer":
            policy.offered(candidate(call.content), admitted=answers[-1] is None)
    return answers


every_policy = pytest.mark.parametrize("make", ADMISSION.values(), ids=list(ADMISSION))
a_few = settings(max_examples=40, deadline=None)


@every_policy
@a_few
@given(history=calls, looked=st.lists(looks, max_size=20))
def test_asking_changes_nothing(
    make: MakeAdmission, history: list[Call], looked: list[Call]
) -> None:
    first, second = make(RULES), make(RULES)
    for call in history:
        assert replay(first, [call]) == replay(second, [call])
        for each in looked:
            assert ask(first, each) == ask(first, each)


@every_policy
@a_few
@given(history=calls)
def test_an_answer_is_admitted_or_one_of_the_policys_reasons(
    make: MakeAdmission, history: list[Call]
) -> None:
    policy = make(RULES)
    assert set(replay(policy, history)) <= {None, *policy.REASONS}


@every_policy
@a_few
@given(history=calls)
def test_the_answers_depend_on_the_calls_alone(make: MakeAdmission, history: list[Call]) -> None:
    assert replay(make(RULES), history) == replay(make(RULES), history)


@every_policy
@a_few
@given(history=calls)
def test_a_caller_that_breaks_its_side_does_no_harm(
    make: MakeAdmission, history: list[Call]
) -> None:
    """Decisions that were never asked for, and the opposite of what was answered."""
    policy = make(RULES)
    for call in history:
        policy.offered(candidate(call.content), admitted=call.fresh)
        policy.offered(candidate(call.content), admitted=not call.fresh)
        assert ask(policy, call) in (None, *policy.REASONS)


@every_policy
def test_memory_is_bounded_whatever_comes(make: MakeAdmission) -> None:
    policy = make(RULES)
    for number in range(3000):
        key = number.to_bytes(16, "little")
        admitted = policy.refusal(Candidate(key, PAGE)) is None
        policy.offered(Candidate(key, PAGE), admitted=admitted)
        policy.used(key)
    if isinstance(policy, SecondHit):
        assert len(policy) == RULES.memory
    if isinstance(policy, Frequency):
        assert policy.sketch.nbytes == 4 * 2 * RULES.memory


@every_policy
def test_only_what_says_so_looks_at_rivals_and_uses(make: MakeAdmission) -> None:
    plain, told = make(RULES), make(RULES)
    for number in range(CONTENTS):
        if not told.counts:
            told.used(KEYS[number])
        rivals = () if told.compares else tuple(KEYS[:5])
        assert plain.refusal(candidate(number)) == told.refusal(candidate(number), rivals)


# --- what each is for ---------------------------------------------------------------------------


def test_always_admits_and_size_and_depth_know_their_bounds() -> None:
    assert {ADMISSION["always"](RULES).refusal(candidate(n)) for n in range(CONTENTS)} == {None}
    for number in range(CONTENTS):
        which = candidate(number)
        assert (ADMISSION["size"](RULES).refusal(which) is None) == (which.nbytes <= 2 * PAGE)
        assert (ADMISSION["depth"](RULES).refusal(which) is None) == (which.depth < 3)


@given(history=st.lists(contents, max_size=200), memory=st.integers(1, 20))
def test_second_hit_admits_what_was_turned_away_before_and_is_remembered(
    history: list[int], memory: int
) -> None:
    policy = SecondHit(AdmissionRules(memory=memory))
    model: OrderedDict[int, None] = OrderedDict()
    for content in history:
        admitted = policy.refusal(candidate(content)) is None
        assert admitted == (content in model)
        policy.offered(candidate(content), admitted=admitted)
        model.pop(content, None)
        if not admitted:
            model[content] = None
            if len(model) > memory:
                model.popitem(last=False)
        assert len(policy) == len(model) <= memory


@given(uses=st.lists(contents, max_size=PERIOD * CONTENTS - 1))
def test_a_count_is_never_too_low_before_it_sinks(uses: list[int]) -> None:
    sketch, true = Sketch(CONTENTS), Counter(uses)
    for content in uses:
        sketch.add(KEYS[content])
    for content in range(CONTENTS):
        assert sketch.count(KEYS[content]) >= min(true[content], MOST)


def test_counts_of_many_contents_are_mostly_right() -> None:
    """4,096 contents, each used 1 to 3 times, in a sketch for as many: within 1 % are too high."""
    sketch, wrong = Sketch(4096), 0
    keys = [content_key("many", number) for number in range(4096)]
    for number, key in enumerate(keys):
        for _ in range(1 + number % 3):
            sketch.add(key)
    for number, key in enumerate(keys):
        wrong += sketch.count(key) != 1 + number % 3
    assert wrong < 41


def test_counts_sink_by_half_after_a_period() -> None:
    sketch = Sketch(16)
    for _ in range(12):
        sketch.add(KEYS[0])
    for number in range(PERIOD * 16 - 12):
        assert sketch.count(KEYS[0]) >= 12, number
        sketch.add((1 << 64 | number).to_bytes(16, "little"))
    assert 6 <= sketch.count(KEYS[0]) <= 8


def test_frequency_weighs_a_candidate_against_all_that_leaves_for_it() -> None:
    policy = Frequency(AdmissionRules(memory=64, floor=1))
    for content, uses in enumerate((4, 3, 2, 1)):
        for _ in range(uses):
            policy.used(KEYS[content])

    def admits(content: int, *rivals: int) -> bool:
        return policy.refusal(candidate(content), [KEYS[r] for r in rivals]) is None

    assert admits(0, 1)
    assert not admits(1, 1)
    assert not admits(0, 1, 2), "4 uses against 3 + 2"
    assert admits(0, 2, 3), "4 against 2 + 1"
    assert not admits(9), "never used, and nothing has to leave: below the floor"
    assert policy.refusal(candidate(9, fresh=True)) is None, "this use is the first"


def test_frequency_lets_old_favourites_go() -> None:
    policy = Frequency(AdmissionRules(memory=16))
    for _ in range(MOST):
        policy.used(KEYS[0])
    for number in range(PERIOD * 16 * 4):
        policy.used((1 << 64 | number).to_bytes(16, "little"))
        if number % 16 == 0:
            policy.used(KEYS[1])
    assert policy.refusal(candidate(1), [KEYS[0]]) is None


# --- cost: instructions, not time ---------------------------------------------------------------


@every_policy
def test_the_cost_of_a_call_does_not_grow_with_what_is_remembered(make: MakeAdmission) -> None:
    per_call = []
    for memory in (64, 2048):
        policy = make(AdmissionRules(memory=memory))

        def calls(policy: Admission = policy, memory: int = memory) -> None:
            for number in range(2 * memory):
                which = Candidate(content_key("cost", number % (memory + 9)), PAGE, number % 80)
                admitted = policy.refusal(which, [KEYS[0]] if policy.compares else ()) is None
                policy.offered(which, admitted=admitted)
                policy.used(which.key)

        calls()
        per_call.append(lines_run(calls) / memory)
    few, many = per_call
    assert many < 1.3 * few
