"""The laws of `policy/admission/base.py`, over histories of calls."""

from collections.abc import Sequence
from random import Random

from kv_cache.core.block import Key, content_key
from kv_cache.policy.admission import Admission, AdmissionRules, Candidate, MakeAdmission

_KEYS = [content_key("content", number) for number in range(24)]
_RULES = AdmissionRules(max_bytes=2 * 4096, max_depth=3, memory=8)


def check_admission(make: MakeAdmission, *, histories: int = 200) -> None:
    """Hold a policy against laws 4 to 6 and 9, over seeded histories. Raises AssertionError, which
    names the law and the seed."""
    for seed in range(histories):
        one, other = make(_RULES), make(_RULES)
        assert _answers(one, seed) == _answers(other, seed), (
            f"law 6: same calls differ, seed {seed}"
        )


def _answers(policy: Admission, seed: int) -> list[str | None]:
    rng = Random(seed)
    answers: list[str | None] = []
    for _ in range(rng.randrange(60)):
        number = rng.randrange(len(_KEYS))
        candidate = Candidate(
            _KEYS[number], 4096 * (1 + number % 3), number % 6, rng.random() < 0.5
        )
        rivals: Sequence[Key] = rng.sample(_KEYS, 3) if policy.compares else ()
        if policy.counts and rng.random() < 0.3:
            policy.used(candidate.key)
        answer = policy.refusal(candidate, rivals)
        assert answer is None or answer in policy.REASONS, f"law 5: {answer!r}, seed {seed}"
        assert policy.refusal(candidate, rivals) == answer, f"law 4: asked twice, seed {seed}"
        wrong = rng.random() < 0.2  # law 9: a caller that breaks its side
        policy.offered(candidate, admitted=(answer is None) != wrong)
        answers.append(answer)
    return answers
