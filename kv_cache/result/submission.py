"""The summary of a tree of MLPerf's sequence as typed values; `mlperf/aggregate` makes it."""

from collections.abc import Mapping

from msgspec import Struct

from kv_cache.core.bounded import Count, Number
from kv_cache.metrics.intervals import IntervalEnds

SCHEMA = "kv-cache-mlperf-summary/2"

FALLS_SHORT, NOT_JUDGED = "falls short", "cannot be judged"
PASSES, NOT_APPLICABLE = "pass", "not applicable"
STATUSES = (FALLS_SHORT, NOT_JUDGED, PASSES, NOT_APPLICABLE)
"""What a rule may find, the gravest first."""


class InvalidReason(Struct, frozen=True, kw_only=True):
    """A flaw of a tree: its name, its file or directory, and what is wrong."""

    kind: str
    where: str
    message: str


class TrialSpread(Struct, frozen=True, kw_only=True):
    """How far the trials of an option agree in one number."""

    values: list[Number]
    median: Number
    mean: Number
    interval: IntervalEnds | None
    coefficient_of_variation: Number | None


class PooledTimes(Struct, frozen=True, kw_only=True):
    """Percentiles of all samples of all ranks, in ms; None where too few support one."""

    count: Count
    max: Number
    p50: Number | None = None
    p95: Number | None = None
    p99: Number | None = None
    p999: Number | None = None


class OptionSummary(Struct, frozen=True, kw_only=True):
    """One option; without any number where it is invalid."""

    option: Count
    name: str | None
    valid: bool
    invalid_because: list[InvalidReason]
    by_the_rules: Mapping[str, Number | None] = {}
    cpu_tier_ranks: list[str] = []
    not_valid: Mapping[str, list[str]] = {}
    spread: Mapping[str, TrialSpread] = {}
    pooled_ms: Mapping[str, PooledTimes | None] = {}


class RuleLook(Struct, frozen=True, kw_only=True):
    """One thing that a rule saw; `where` is a file or a directory of the tree."""

    where: str
    message: str


class RuleFinding(Struct, frozen=True, kw_only=True):
    """What one rule found."""

    rule: str
    section: str
    status: str
    looks: list[RuleLook]


class TreeFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a tree. `rules` is empty in a summary alone."""

    tree: str
    division: str | None
    system: str | None
    total_ranks: Count
    trials_per_option: Count
    hosts: list[str]
    drives: list[str]
    program_versions: list[str]
    started_utc: str | None
    complete: bool
    not_submittable: list[str]
    deviations: list[str]
    options: Mapping[str, OptionSummary]
    rules: list[RuleFinding] = []
    edition: str | None = None  # of the rules
