"""The section `policies`: what comes into a tier, when it is written down and what is brought up
ahead of time. Which copy leaves a full tier is `tiers.eviction`."""

from dataclasses import dataclass

from kv_cache.config.admission import TAKES, AdmissionConfig
from kv_cache.config.schema import opt
from kv_cache.policy.admission import ADMISSION, Admission
from kv_cache.policy.prefetch import PREFETCH, PrefetchRules
from kv_cache.schedule.ahead import Ahead

AT = ("lower", "all", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesConfig(AdmissionConfig):
    """What comes into a tier (which copy leaves it: tiers.eviction)."""

    admission: str = opt("always", TAKES, choices=ADMISSION, flag="--admission")
    admission_at: str = opt(
        "lower", "Tiers that apply the admission policy: all below the fastest, all, or storage "
        "only", choices=AT, flag="--admission-at", read_when=".admission!=always",
    )  # fmt: skip
    write: str = opt(
        "back",
        "When a block goes to storage: when its tier makes room (back); as soon as it is stored, "
        "in the background, so that leaving a tier is free (through); likewise, but only what "
        "storage admits, which it is asked again when the block is used again (through-selective)",
        choices=("back", "through", "through-selective"), flag="--write-policy",
        read_when="several_tiers",
    )  # fmt: skip
    prefetch: str = opt(
        "none",
        "What to prefetch into faster tiers while requests compute and users think: nothing; the "
        "blocks of the request, which its next turn will need (next-in-session); the blocks of "
        "what followed this conversation or sequence before (successor)", choices=PREFETCH,
        flag="--prefetch", read_when="several_tiers",
    )  # fmt: skip
    prefetch_to: str = opt(
        "fastest", "Where it is brought: the fastest tier that takes it, or the next above",
        choices=("fastest", "next"), read_when=".prefetch!=none",
    )  # fmt: skip
    prefetch_blocks: int = opt(
        16, "Blocks that one request may have brought up", unit="blocks", low=1, high=4096,
        read_when=".prefetch!=none",
    )  # fmt: skip
    prefetch_in_flight: int = opt(
        4, "Blocks that are brought up at the same time", unit="blocks", low=1, high=64,
        read_when=".prefetch!=none",
    )  # fmt: skip
    prefetch_confidence: int = opt(
        2, "With successor: how often it must have followed", low=1, high=1_000_000,
        read_when=".prefetch=successor",
    )  # fmt: skip
    prefetch_memory: int = opt(
        16_384, "With successor: conversations, and sequences, that are remembered", low=2,
        high=2**24, read_when=".prefetch=successor",
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
    return range(first, tiers - 1 if writes_all(given, tiers) else tiers)


def writes_all(given: PoliciesConfig, tiers: int) -> bool:
    return given.write == "through" and tiers > 1


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
