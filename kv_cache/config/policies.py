"""The section `policies`: what comes into a tier, when it is written down and what is brought up
ahead of time. Which copy leaves a full tier is `tiers.eviction`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kv_cache.config.admission import READ_WITH, TAKES, AdmissionConfig
from kv_cache.config.schema import opt, show
from kv_cache.extensions import is_an_extension
from kv_cache.policy.admission import ADMISSION, Admission
from kv_cache.policy.prefetch import PREFETCH, PrefetchRules
from kv_cache.schedule.ahead import Ahead

if TYPE_CHECKING:
    from kv_cache.config.root import Config

AT = ("lower", "all", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesConfig(AdmissionConfig):
    """What comes into a tier (which copy leaves it: tiers.eviction)."""

    admission: str = opt("always", TAKES, choices=ADMISSION, flag="--admission")
    admission_at: str = opt(
        "lower", "Tiers that apply the admission policy: all below the fastest, all, or storage "
                 "only", choices=AT,
        flag="--admission-at",
    )  # fmt: skip
    write: str = opt(
        "back",
        "When a block goes to storage: when its tier makes room (back); as soon as it is stored, "
        "in the background, so that leaving a tier is free (through); likewise, but only what "
        "storage admits, which it is asked again when the block is used again (through-selective)",
        choices=("back", "through", "through-selective"), flag="--write-policy",
    )  # fmt: skip
    prefetch: str = opt(
        "none",
        "What to prefetch into faster tiers while requests compute and users think: nothing; the "
        "blocks of the request, which its next turn will need (next-in-session); the blocks of "
        "what followed this conversation or sequence before (successor)",
        choices=PREFETCH, flag="--prefetch",
    )  # fmt: skip
    prefetch_to: str = opt(
        "fastest", "Where it is brought: the fastest tier that takes it, or the next above",
        choices=("fastest", "next"),
    )  # fmt: skip
    prefetch_blocks: int = opt(
        16, "Blocks that one request may have brought up", unit="blocks", low=1, high=4096
    )
    prefetch_in_flight: int = opt(
        4, "Blocks that are brought up at the same time", unit="blocks", low=1, high=64
    )
    prefetch_confidence: int = opt(
        2, "With successor: how often it must have followed", low=1, high=1_000_000
    )
    prefetch_memory: int = opt(
        16_384, "With successor: conversations, and sequences, that are remembered", low=2,
        high=2**24,
    )  # fmt: skip

    def prefetch_rules(self) -> PrefetchRules:
        return PrefetchRules(
            most=self.prefetch_blocks,
            confidence=self.prefetch_confidence,
            memory=self.prefetch_memory,
        )


def guarded_tiers(given: PoliciesConfig, tiers: int) -> range:
    """Which of so many tiers ask the admission policy, counted from the fastest."""
    if given.admission == "always":
        return range(0)
    first = {"all": 0, "lower": 1, "storage": tiers - 1}[given.admission_at]
    # Written through, everything comes to storage. Were what leaves before its copy is made asked
    # about, it would be the race between the two that decides.
    return range(first, tiers - 1 if _writes_all(given, tiers) else tiers)


def _writes_all(given: PoliciesConfig, tiers: int) -> bool:
    return given.write == "through" and tiers > 1


_ONLY_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{name: ("admission", policies) for name, policies in READ_WITH.items()},
    "prefetch_to": ("prefetch", ("next-in-session", "successor")),
    "prefetch_blocks": ("prefetch", ("next-in-session", "successor")),
    "prefetch_in_flight": ("prefetch", ("next-in-session", "successor")),
    "prefetch_confidence": ("prefetch", ("successor",)),
    "prefetch_memory": ("prefetch", ("successor",)),
    "admission_at": ("admission", tuple(name for name in ADMISSION.ours if name != "always")),
}
"""Options that mean something only with certain values of another one."""


def policy_warnings(config: "Config") -> Iterator[str]:
    """Options that change nothing about this run."""
    given = config.policies
    default = {field.name: field.default for field in fields(PoliciesConfig)}
    for name, (switch, values) in _ONLY_WITH.items():
        policy = getattr(given, switch)
        if is_an_extension(policy):  # it may read anything
            continue
        if getattr(given, name) != default[name] and policy not in values:
            yield f"{_say(given, name)}: no effect, as {_say(given, switch)}"
    asking = given.admission == "always" or bool(guarded_tiers(given, _tiers(config)))
    if not asking and _writes_all(given, _tiers(config)):
        yield (
            f"{_say(given, 'admission')}: no effect, as {_say(given, 'write')}, which storage is "
            "not asked about, and no other tier asks; use through-selective, or --admission-at all"
        )
    elif not asking:
        yield (
            f"{_say(given, 'admission')}: no effect, as storage is the only tier and "
            "policies.admission_at (--admission-at) is 'lower'; use --admission-at all"
        )
    if given.prefetch != "none" and _tiers(config) == 1:
        yield f"{_say(given, 'prefetch')}: no effect, as storage is the only tier"
    if given.write != "back" and _tiers(config) == 1:
        yield f"{_say(given, 'write')}: no effect, as storage is the only tier"
    elif given.write == "through-selective" and given.admission == "always":
        yield f"{_say(given, 'write')}: the same as through, as storage takes everything"


def _tiers(config: "Config") -> int:
    return 1 + bool(config.tiers.gpu_gib) + bool(config.tiers.cpu_gib)


def _say(given: PoliciesConfig, name: str) -> str:
    rule: Any = {field.name: field for field in fields(PoliciesConfig)}[name].metadata["rule"]
    flag = f" ({rule.flag})" if rule.flag else ""
    return f"policies.{name}{flag} is {show(getattr(given, name))}"


def build_admission(given: PoliciesConfig, tiers: int) -> list[Admission | None]:
    """A policy of its own for each tier that asks."""
    make, guarded = ADMISSION[given.admission], guarded_tiers(given, tiers)
    return [make(given.admission_rules()) if i in guarded else None for i in range(tiers)]


def build_ahead(given: PoliciesConfig) -> Ahead | None:
    """What is to be brought up ahead; None where nothing is."""
    if given.prefetch == "none":
        return None
    return Ahead(
        PREFETCH[given.prefetch](given.prefetch_rules()),
        slots=given.prefetch_in_flight,
        most=given.prefetch_blocks,
        nearest=given.prefetch_to == "next",
    )
