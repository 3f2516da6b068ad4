"""What a sequence runs, and which published rule each departure from a CLOSED submission breaks."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from kv_cache.config.mlperf import MLPERF_OPTIONS, OPTION_DELAY_S, SEED, TRIALS

CLOSED, OPEN = "closed", "open"

Variables = Mapping[str, tuple[str, str]]
"""Environment variables that set options of `run`: of each the option's path, and the text."""


class Deviation(NamedTuple):
    """A departure from what CLOSED prescribes, with the name of the rule."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


class Plan(Struct, frozen=True, kw_only=True):
    """One sequence: options x trials x ranks."""

    division: str
    options: tuple[int, ...]
    trials: int
    ranks: int
    seed: int
    option_delay_s: float
    shorten_s: float | None
    config: str | None  # the file as it was named
    flags: tuple[str, ...]  # of `run`, for every rank
    launch: tuple[str, ...]  # what precedes the wrapper; empty: ranks are started here
    command: tuple[str, ...]  # the call, word for word
    reclaim: str | None = None  # a dead host, whose files are removed from the cache directory
    variables: Variables = field(default_factory=dict)

    def window_s(self, option: int) -> float:
        """Return how long each of its runs measures, unless a flag says otherwise."""
        return MLPERF_OPTIONS[option].duration_s if self.shorten_s is None else self.shorten_s

    @property
    def run_words(self) -> tuple[str, ...]:
        """The flags of `run` for every rank. Variables are among them, so that ranks on all hosts
        have the same options, whatever is in the environment there."""
        pairs = [f"{path}={text}" for path, text in self.variables.values()]
        return (*(word for pair in pairs for word in ("--set", pair)), *self.flags)

    def rank_words(self, option: int, output: Path, cache: str, config: Path | None) -> list[str]:
        """Return the wrapper's arguments for a trial: with flags of `run` in the form of v3.0, else
        in that of July 2026. `config` is the file that ranks read."""
        shared = [] if config is None else ["--config", str(config)]
        shared += [] if self.reclaim is None else ["--reclaim", self.reclaim]
        seconds = "" if self.shorten_s is None else f"{self.shorten_s:g}"
        if not self.run_words:
            words = ["--option", str(option), "--base-output-dir", str(output)]
            words += ["--cache-dir", cache, "--seed", str(self.seed), *shared]
            return [*words, "--shorten", seconds] if seconds else words
        words = ["--rank-output-base", str(output), "--rank-cache-base", cache]
        words += ["--seed-base", str(self.seed), *shared, *_option_flags(option), *self.run_words]
        if not seconds:
            return words
        why = f"--shorten ends the window after {seconds} s"
        return [*words, "--duration", seconds, "--not-submittable", why]

    def whole_s(self, overhead_s: float) -> float:
        """Return about how long the sequence takes, if a trial takes `overhead_s` more than its
        window."""
        return self.left_s(0, 0, overhead_s)

    def left_s(self, trials: int, options: int, overhead_s: float) -> float:
        """Return about how long it still takes once some trials have ended, of so many options."""
        each = [self.window_s(o) + overhead_s for o in self.options for _ in range(self.trials)]
        return sum(each[trials:]) + self.option_delay_s * (len(self.options) - max(1, options))

    def to_json(self) -> dict[str, Any]:
        return {
            "options": list(self.options),
            "trials": self.trials,
            "ranks": self.ranks,
            "seed": self.seed,
            "option_delay_s": float(self.option_delay_s),
            "shorten_s": self.shorten_s,
            "config": self.config,
            "flags": list(self.run_words),
            "launch": list(self.launch),
            "command": list(self.command),
        }


def _option_flags(option: int) -> list[str]:
    known = MLPERF_OPTIONS[option]
    flags = {
        "model": known.model,
        "num-users": known.users,
        "duration": f"{known.duration_s:g}",
        "gpu-mem-gb": known.gpu_mem_gib,
        "cpu-mem-gb": known.cpu_mem_gib,
        "max-concurrent-allocs": known.max_concurrent_allocs,
        "generation-mode": known.generation_mode,
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def longest_window_s() -> float:
    """Return the longest window that the rules have."""
    return max(option.duration_s for option in MLPERF_OPTIONS.values())


def deviations(
    plan: Plan, overrides: Mapping[str, Any], same_filesystem: bool, cache_dir: str
) -> list[Deviation]:
    """Return everything in which a plan is not a CLOSED submission. `overrides` is what its flags
    and variables set."""
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
        message = f"--shorten {plan.shorten_s:g}: the options have 300 s"
        yield Deviation("kvcacheFixedWorkloadPerOption", message)
    if plan.seed != SEED:
        yield Deviation(locks, f"--seed {plan.seed}: {SEED} is fixed")
    if plan.trials != TRIALS:
        yield Deviation(locks, f"--trials {plan.trials}: {TRIALS} are fixed")
    if plan.option_delay_s != OPTION_DELAY_S:
        message = f"--option-delay {plan.option_delay_s:g}: {OPTION_DELAY_S:g} s are fixed"
        yield Deviation(locks, message)
    if plan.config is not None:
        yield Deviation(locks, f"--config {plan.config}: none is allowed")


def _of_flags(plan: Plan, overrides: Mapping[str, Any]) -> Iterator[Deviation]:
    if overrides.get("autoscaler.enabled"):
        message = "--enable-autoscaling: the number of users is fixed"
        yield Deviation("kvcacheAutoscalingProhibited", message)
    if plan.flags:
        message = f"{' '.join(plan.flags)}: no flag of run may be given"
        yield Deviation("kvcacheClosedImmutable", message)
    for name, (_, text) in plan.variables.items():
        message = f"{name}={text} in the environment: no option of run may be set"
        yield Deviation("kvcacheClosedImmutable", message)


def _of_places(same_filesystem: bool, cache_dir: str) -> Iterator[Deviation]:
    if "://" in cache_dir:
        message = f"--cache-dir {cache_dir}: an object store is used through a mount"
        yield Deviation("kvcacheObjectViaGateway", message)
    if same_filesystem:
        message = "--cache-dir and --results-dir are on one file system"
        yield Deviation("kvcachePosixCacheDir", message)


def ranks_of_launch(words: tuple[str, ...]) -> int | None:
    """Return how many ranks an mpirun or srun starts; None if its words do not say."""
    for at, word in enumerate(words):
        option, _, joined = word.partition("=")
        if option in ("-n", "-np", "--np", "--n", "--ntasks"):
            number = joined or "".join(words[at + 1 : at + 2])
            return int(number) if number.isdigit() and int(number) else None
    return None
