"""What is compared: an eviction policy with an admission policy, each with its own numbers where
they were changed. `regret-aware:regret_weight=0+second-hit:memory=1000` is how one is called.

Numbers are those that the policies themselves take; nothing is known about them here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.seed import Seed
from kv_cache.extensions import Catalogue
from kv_cache.lab.chance import AtRandom
from kv_cache.policy.admission import ADMISSION, Admission, AdmissionRules
from kv_cache.policy.eviction import EVICTION, Eviction

Number = int | float

RANDOM, ALWAYS = "random", "always"
POLICIES: Sequence[str] = (*EVICTION.ours, RANDOM)
"""Those of the tiers, and one that no tier has: any block may go."""
USUAL: Sequence[str] = tuple(name for name in POLICIES if name != "learned")
"""Without the one that takes some tenths of a millisecond for each eviction."""
ADMISSIONS: Sequence[str] = tuple(ADMISSION.ours)


@dataclass(frozen=True, slots=True)
class Named:
    """A policy of a table, and the numbers that are not its own."""

    name: str
    numbers: tuple[tuple[str, Number], ...] = ()

    def __str__(self) -> str:
        return ":".join((self.name, *(f"{name}={number:.12g}" for name, number in self.numbers)))


@dataclass(frozen=True, slots=True)
class PolicyVariant:
    policy: Named
    admission: Named = Named(ALWAYS)

    def __str__(self) -> str:
        if self.admission.name == ALWAYS:
            return str(self.policy)
        return f"{self.policy}+{self.admission}"

    @property
    def plain(self) -> str | None:
        """The policy's name, if it is just that."""
        return None if self.policy.numbers or self.admission.name != ALWAYS else self.policy.name

    def eviction(self, room_bytes: int, seed: Seed) -> Eviction:
        if self.policy.name == RANDOM:
            return AtRandom(seed.child("evictions"))
        policy: Callable[..., Eviction] = EVICTION[self.policy.name]
        return policy(room_bytes, **dict(self.policy.numbers))

    def gate(self) -> Admission | None:
        """None where everything is admitted."""
        if self.admission.name == ALWAYS:
            return None
        rules: Callable[..., AdmissionRules] = AdmissionRules
        return ADMISSION[self.admission.name](rules(**dict(self.admission.numbers)))


def variants_of(policies: str, admissions: str, flags: tuple[str, str]) -> list[PolicyVariant]:
    """Each policy with each admission, of two lists with commas. Raises ConfigError."""
    evicting = _listed(policies, flags[0], "policy", EVICTION, _numbers_of_policy)
    admitting = _listed(admissions, flags[1], "admission", ADMISSION, _numbers_of_admission)
    variants = [PolicyVariant(policy, admission) for admission in admitting for policy in evicting]
    for variant in variants:
        _tried(variant, flags)
    return variants


def _listed(
    text: str, flag: str, what: str, table: Catalogue[Any],
    numbers_of: Callable[[str], Mapping[str, type]],
) -> list[Named]:  # fmt: skip
    policies: list[Named] = []
    for part in text.split(","):
        name, *numbers = part.strip().split(":")
        if name not in table.ours and numbers and "=" not in numbers[0]:
            name, numbers = f"{name}:{numbers[0]}", numbers[1:]  # MODULE:CLASS
        if name not in table and (table is not EVICTION or name != RANDOM):
            known = (*table, RANDOM) if table is EVICTION else table
            raise ConfigError(f"{flag}: {name!r} is no {what}.{did_you_mean(name, known)}")
        named = Named(name, tuple(_number(flag, name, each, numbers_of(name)) for each in numbers))
        changed = [key for key, _ in named.numbers]
        for key in changed:
            if changed.count(key) > 1:
                raise ConfigError(f"{flag}: {part.strip()}: duplicate {key}; keep one")
        if named in policies:
            raise ConfigError(f"{flag}: duplicate {named}; keep one")
        policies.append(named)
    return policies


def _number(flag: str, name: str, text: str, known: Mapping[str, type]) -> tuple[str, Number]:
    """Parse one number of a policy."""
    key, _, value = text.partition("=")
    if key not in known:
        has = f"it has {', '.join(known)}" if known else "it has no numbers to change"
        near = did_you_mean(key, known)
        meant = near if near.startswith(" Did") else ""
        raise ConfigError(f"{flag}: {name} has no {key!r}; {has}.{meant}")
    try:
        return key, known[key](value)
    except ValueError:
        kind = "whole number" if known[key] is int else "number"
        raise ConfigError(f"{flag}: {name}:{text} must be {key}= and a {kind}") from None


@cache
def _numbers_of_policy(name: str) -> Mapping[str, type]:
    if name == RANDOM:
        return {}
    numbers: Sequence[tuple[str, Number]] = getattr(EVICTION[name], "NUMBERS", ())
    return {key: type(usual) for key, usual in numbers}


def _numbers_of_admission(name: str) -> Mapping[str, type]:
    numbers: Sequence[str] = getattr(ADMISSION[name], "NUMBERS", ())
    return {
        each.name: type(each.default) for each in fields(AdmissionRules) if each.name in numbers
    }


def _tried(variant: PolicyVariant, flags: tuple[str, str]) -> None:
    """Makes it once: what is out of bounds is refused before a trace is read."""
    for flag, policy, make in (
        (flags[0], variant.policy, lambda: variant.eviction(1, Seed(0))),
        (flags[1], variant.admission, variant.gate),
    ):
        try:
            make()
        except ValueError as error:
            raise ConfigError(f"{flag}: {policy}: {error}") from None
