"""What a sequence runs, and which published rule each departure from a CLOSED submission breaks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kv_cache.config.mlperf import MLPERF_OPTIONS, OPTION_DELAY_S, SEED, TRIALS

CLOSED, OPEN = "closed", "open"


class Deviation(NamedTuple):
    """A departure from what CLOSED prescribes, with the name of the rule."""

    rule: str
    says: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One sequence: options x trials x ranks."""

    division: str
    options: tuple[int, ...]
    trials: int
    ranks: int
    seed: int
    option_delay_s: float
    shorten_s: float | None
    config: str | None  # as it was given
    flags: tuple[str, ...]  # of `run`, for every rank
    launch: tuple[str, ...]  # what precedes the wrapper; empty: ranks are started here
    command: tuple[str, ...]  # the call, word for word
    reclaim: str | None = None  # a dead host, whose files are removed from the cache directory

    def window_s(self, option: int) -> float:
        """Return how long each of its runs measures, unless a flag changes it."""
        return MLPERF_OPTIONS[option].duration_s if self.shorten_s is None else self.shorten_s

    def to_json(self) -> dict[str, Any]:
        return {
            "options": list(self.options),
            "trials": self.trials,
            "ranks": self.ranks,
            "seed": self.seed,
            "option_delay_s": float(self.option_delay_s),
            "shorten_s": self.shorten_s,
            "config": self.config,
            "flags": list(self.flags),
            "launch": list(self.launch),
            "command": list(self.command),
        }


def deviations(
    plan: Plan, overrides: Mapping[str, Any], same_filesystem: bool, cache_dir: str
) -> list[Deviation]:
    """Return every departure of a plan from a CLOSED submission. `overrides` are the options that
    its flags set."""
    return [
        *_of_sequence(plan),
        *_of_flags(plan, overrides),
        *_of_places(same_filesystem, cache_dir),
    ]


def _of_sequence(plan: Plan) -> Iterator[Deviation]:
    locks = "kvcacheClosedSequenceLocks"
    if plan.options != tuple(MLPERF_OPTIONS):
        named = ", ".join(map(str, plan.options))
        yield Deviation("kvcacheFixedWorkloadPerOption", f"--option {named}: all three are wanted")
    if plan.shorten_s is not None:
        says = f"--shorten {plan.shorten_s:g}: the options have 300 s"
        yield Deviation("kvcacheFixedWorkloadPerOption", says)
    if plan.seed != SEED:
        yield Deviation(locks, f"--seed {plan.seed}: {SEED} is fixed")
    if plan.trials != TRIALS:
        yield Deviation(locks, f"--trials {plan.trials}: {TRIALS} are fixed")
    if plan.option_delay_s != OPTION_DELAY_S:
        says = f"--option-delay {plan.option_delay_s:g}: {OPTION_DELAY_S:g} s are fixed"
        yield Deviation(locks, says)
    if plan.config is not None:
        yield Deviation(locks, f"--config {plan.config}: none is allowed")


def _of_flags(plan: Plan, overrides: Mapping[str, Any]) -> Iterator[Deviation]:
    if overrides.get("autoscaler.enabled"):
        says = "--enable-autoscaling: the number of users is fixed"
        yield Deviation("kvcacheAutoscalingProhibited", says)
    if plan.flags:
        says = f"{' '.join(plan.flags)}: no flag of run may be given"
        yield Deviation("kvcacheClosedImmutable", says)


def _of_places(same_filesystem: bool, cache_dir: str) -> Iterator[Deviation]:
    if "://" in cache_dir:
        says = f"--cache-dir {cache_dir}: an object store is used through a mount"
        yield Deviation("kvcacheObjectViaGateway", says)
    if same_filesystem:
        says = "--cache-dir and --results-dir are on one file system"
        yield Deviation("kvcachePosixCacheDir", says)


def ranks_of_launch(words: tuple[str, ...]) -> int | None:
    """Return how many ranks an mpirun or srun starts; None if its arguments do not say."""
    for at, word in enumerate(words):
        option, _, joined = word.partition("=")
        if option in ("-n", "-np", "--np", "--n", "--ntasks"):
            number = joined or "".join(words[at + 1 : at + 2])
            return int(number) if number.isdigit() and int(number) else None
    return None
