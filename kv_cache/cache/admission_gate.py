"""The admission gate of the tiers: who asks the admission policies, and what was turned away.

A plan asks through `AdmissionAnswers`, which changes nothing. Once the plan is carried out its
answers are settled: only then do the policies hear of them, and only then do they count.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from kv_cache.cache.counts import CopyTally
from kv_cache.core.block import Key
from kv_cache.policy.admission import Admission, Candidate


class Rivals:
    """What would leave a tier for what comes, one candidate after the other. `room` None: nothing
    ever has to. Of no use once the tier's policy has changed."""

    def __init__(self, room: int | None, victims: Iterator[tuple[Key, int]]) -> None:
        self._room = room
        self._victims = victims
        self._known: list[tuple[Key, int]] = []

    def against(self, nbytes: int) -> tuple[Key, ...]:
        return tuple(key for key, _ in self._known[: self._needed(nbytes)])

    def admit(self, nbytes: int) -> None:
        """The next candidates have other rivals: these are as good as gone."""
        if self._room is None:
            return
        count = self._needed(nbytes)
        self._room += sum(size for _, size in self._known[:count]) - nbytes
        del self._known[:count]

    def _needed(self, nbytes: int) -> int:
        if self._room is None:
            return 0
        short, count = nbytes - self._room, 0
        while short > 0:
            if count == len(self._known):
                victim = next(self._victims, None)
                if victim is None:
                    break
                self._known.append(victim)
            short -= self._known[count][1]
            count += 1
        return count


class AdmissionAnswers(Struct, eq=False):
    """What one plan was answered: by tier and key, the candidate and why not (None: admitted)."""

    by_tier_and_key: dict[tuple[int, Key], tuple[Candidate, str | None]] = field(
        default_factory=dict
    )

    def refused(self, index: int, key: Key) -> bool:
        answer = self.by_tier_and_key.get((index, key))
        return answer is not None and answer[1] is not None


class AdmissionGate:
    """One policy for each tier, the fastest first; None where everything comes in unasked."""

    def __init__(self, policies: Sequence[Admission | None]) -> None:
        self._policies = tuple(policies)
        self._counting = tuple(p for p in self._policies if p is not None and p.counts)
        self.admitted = tuple(CopyTally() for _ in policies)
        self.not_admitted: tuple[dict[str, CopyTally], ...] = tuple({} for _ in policies)
        self.not_stored = CopyTally()  # new blocks that no tier took

    def guarded(self, index: int) -> bool:
        return self._policies[index] is not None

    def compares(self, index: int) -> bool:
        policy = self._policies[index]
        return policy is not None and policy.compares

    def ask(
        self, answers: AdmissionAnswers, index: int, candidate: Candidate, rivals: Rivals | None
    ) -> bool:
        """Return whether a tier takes the candidate; the answer is kept in `answers`."""
        policy = self._policies[index]
        if policy is None:
            return True
        against = () if rivals is None else rivals.against(candidate.nbytes)
        why = policy.refusal(candidate, against)
        answers.by_tier_and_key[index, candidate.key] = candidate, why
        if why is None and rivals is not None:
            rivals.admit(candidate.nbytes)
        return why is None

    def settle(self, answers: AdmissionAnswers, key: Key, *, into: int | None) -> None:
        """Settle what one plan asked about a key that went `into` a tier, or into none: the answers
        of the tiers before that one have been decisions. If a tier would have admitted it but had
        no room, no decision is recorded."""
        for index, policy in enumerate(self._policies):
            answer = answers.by_tier_and_key.get((index, key))
            if policy is None or answer is None:
                continue
            candidate, why = answer
            if why is not None:
                self.not_admitted[index].setdefault(why, CopyTally()).add(candidate.nbytes)
                policy.offered(candidate, admitted=False)
            elif index == into:
                self.admitted[index].add(candidate.nbytes)
                policy.offered(candidate, admitted=True)

    def took(self, answers: AdmissionAnswers, keys: Iterable[Key], index: int) -> None:
        """Settle what was asked about new blocks that went into a tier, which is a use of them."""
        if answers.by_tier_and_key or self._counting:
            for key in keys:
                self.settle(answers, key, into=index)
                self.used(key)

    def used(self, key: Key) -> None:
        for policy in self._counting:
            policy.used(key)
