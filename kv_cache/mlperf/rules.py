"""A tree held against the rules: the published ones by their published names, and our own.

Each rule is a function that looks at the tree and yields what it saw; the gravest look is the
rule's status. A rule that rests on what is not in the files says so, and passes nothing. Sections
and names are those of the MLPerf Storage v3.0 rules; which look checks what stands in
`docs/reference/mlperf-rules.md`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from kv_cache.config.load import load_config
from kv_cache.config.mlperf import (
    LAUNCHERS_DELAY_S,
    MLPERF_OPTIONS,
    OPTION_DELAY_S,
    PUBLISHED,
    SEED,
    TRIALS,
)
from kv_cache.config.schema import to_mapping
from kv_cache.core.errors import UsageError
from kv_cache.files.reading import result_bytes
from kv_cache.metrics.judging import Look, Status, gravest, invalid, nothing, unknown, well
from kv_cache.metrics.passport import VALID
from kv_cache.mlperf import directories
from kv_cache.mlperf.aggregate import HEADLINE, by_the_rules, trial_spread
from kv_cache.mlperf.instants import delays, in_turn
from kv_cache.mlperf.layout import LAUNCHERS_METADATA, MANIFEST, SUMMARY
from kv_cache.mlperf.manifest import FINISHED, PlanRecord, gone
from kv_cache.mlperf.plan import OPEN
from kv_cache.mlperf.rankfile import CPU_ONLY, MISSING, TAMPERED, RankResult
from kv_cache.mlperf.tree import OWN_OPTIONS, Expected, Tree
from kv_cache.result import submission
from kv_cache.result.paths import flat

Json = Mapping[str, Any]

_ROUNDED_S = 1e-3
GRAVEST_FIRST = (Status.INVALID, Status.NOT_JUDGED, Status.PASS, Status.NOT_APPLICABLE)
"""What cannot be judged weighs more than what passes: a submission has to show that it complies."""

STATUS_WORDS: Mapping[Status, str] = {
    Status.INVALID: submission.FALLS_SHORT,
    Status.NOT_JUDGED: submission.NOT_JUDGED,
    Status.PASS: submission.PASSES,
    Status.NOT_APPLICABLE: submission.NOT_APPLICABLE,
}


class TreeFinding(Struct, frozen=True, kw_only=True):
    """What one rule found, with the looks that made its status."""

    rule: str
    section: str
    status: Status
    looks: tuple[Look, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "section": self.section,
            "status": STATUS_WORDS[self.status],
            "looks": [{"where": look.where, "message": look.message} for look in self.looks],
        }


TreeRule = Callable[[Tree], Iterator[Look]]


def check_tree(tree: Tree) -> tuple[TreeFinding, ...]:
    """Judge a tree by every rule, in the order of the sections."""
    return tuple(_find(name, section, rule, tree) for name, (section, rule) in RULES.items())


def _find(name: str, section: str, rule: TreeRule, tree: Tree) -> TreeFinding:
    status, looks = gravest(rule(tree), GRAVEST_FIRST)
    return TreeFinding(rule=name, section=section, status=status, looks=looks)


def _closed_only(rule: TreeRule) -> TreeRule:
    """A rule that CLOSED submissions have to keep."""

    def look(tree: Tree) -> Iterator[Look]:
        if tree.division == OPEN:
            yield nothing("OPEN may differ")
        elif tree.division is None:
            yield unknown("neither path nor record says whether this is closed or open")
        else:
            yield from rule(tree)

    return look


def _each(tree: Tree, flaw: Callable[[RankResult], Iterator[str]], passes: str) -> Iterator[Look]:
    """A look at each rank; one that passes stands for all that do."""
    flaws = [invalid(message, r.path) for r in tree.ranks for message in flaw(r)]
    yield from _unread(tree)
    yield from flaws or [well(f"{passes} ({len(tree.ranks)} results)")]


def _unread(tree: Tree) -> Iterator[Look]:
    """What nobody can look at passes no rule: results that are missing or cannot be read."""
    expected = tree.expected
    wanted = len(expected.options) * expected.trials * expected.ranks
    read = sum(expected.has(result.spot) for result in tree.ranks)
    if not tree.ranks:
        yield unknown("no rank's result can be read")
    elif read < wanted:
        yield unknown(f"only {read} of {wanted} results are there and can be judged")


# --- 6.3: the workloads, the sequence, the clients -------------------------------------------


def _fixed_workload(tree: Tree) -> Iterator[Look]:
    for option in MLPERF_OPTIONS:
        if option not in tree.expected.options:
            yield invalid("was not run; all three options are wanted", f"option_{option}")
    yield from _each(tree, _workload, "every value is Table KVCache-1's")


def _workload(result: RankResult) -> Iterator[str]:
    known = MLPERF_OPTIONS.get(result.spot.option)
    if known is None:
        yield f"is of option {result.spot.option}, which there is not"
        return
    for name, value in known.overrides().items():
        told = result.config.get(name)
        if told != value:
            yield f"{name} is {told!r}, and {value!r} is fixed"
    if not isclose(result.window_s, known.duration_s, abs_tol=_ROUNDED_S):
        yield f"its window was {result.window_s:.6g} s long, and {known.duration_s:g} s are fixed"


def _sequence_locks(tree: Tree) -> Iterator[Look]:
    yield from _each(tree, _seed, f"seed {SEED} plus the rank")
    plan, where = tree.plan, tree.record_name or ""
    if plan is None:
        yield unknown(f"trials, delays and --config: there is no {_RECORDS}")
        return
    yield from (invalid(message, where) for message in _unlocked(plan))
    delays_s = [OPTION_DELAY_S] if tree.launch is None else [OPTION_DELAY_S, LAUNCHERS_DELAY_S]
    delay_s = delays_s[-1] if plan.option_delay_s is None else plan.option_delay_s
    if delay_s not in delays_s:
        fixed = " or ".join(f"{each:g}" for each in delays_s)
        yield invalid(f"option_delay_s: {delay_s:g}, and {fixed} is fixed", where)
    yield from delays(tree, len(plan.options) * plan.trials, delay_s, where)


_RECORDS = f"{MANIFEST} and no {LAUNCHERS_METADATA} of mlpstorage"


def _unlocked(plan: PlanRecord) -> Iterator[str]:
    if plan.trials != TRIALS:
        yield f"trials: {plan.trials}, and {TRIALS} are fixed"
    if plan.seed != SEED:
        yield f"seed: {plan.seed}, and {SEED} is fixed"
    if plan.config is not None:
        yield f"config: {plan.config}, and none is allowed"


def _seed(result: RankResult) -> Iterator[str]:
    wanted = SEED + result.spot.rank
    if result.seed != wanted:
        yield f"seed is {result.seed}, and {wanted} ({SEED} + rank) is fixed"


def _no_autoscaling(tree: Tree) -> Iterator[Look]:
    def enabled(result: RankResult) -> Iterator[str]:
        if result.config.get("autoscaler.enabled") is not False:
            yield f"autoscaler.enabled is {result.config.get('autoscaler.enabled')!r}"

    yield from _each(tree, enabled, "no rank scaled its users")


def _client_definition(tree: Tree) -> Iterator[Look]:
    def alone(result: RankResult) -> Iterator[str]:
        if result.mpi.ranks is None and tree.expected.ranks > 1:
            yield "does not know of how many ranks it is one"

    yield from _each(tree, alone, f"one process each, of {tree.expected.ranks}")


def _scale_up(tree: Tree) -> Iterator[Look]:
    def load(result: RankResult) -> tuple[Any, ...]:
        names = ("run.num_users", "schedule.max_concurrent_allocs")
        return tuple(result.config.get(name) for name in names)

    first = {r.spot.option: load(r) for r in reversed(tree.ranks)}

    def less(result: RankResult) -> Iterator[str]:
        if load(result) != first[result.spot.option]:
            yield f"has (users, allocations) {load(result)}, others {first[result.spot.option]}"

    yield from _each(tree, less, "every client of an option has the same load")


def _isolation(tree: Tree) -> Iterator[Look]:
    yield from _each(tree, _own_places, "every client has a directory and a file of its own")
    trials = [] if tree.manifest is None else tree.manifest.record.trials
    for row in trials:
        if row.left_in_cache:
            message = f"left {row.left_in_cache} files in the cache directory for what came next"
            yield invalid(message, f"option_{row.option}/trial_{row.trial}")


def _own_places(result: RankResult) -> Iterator[str]:
    own = f"rank_{result.spot.rank}"
    directories = result.config.get("tiers.cache_dir")
    for directory in directories if isinstance(directories, list) else [directories]:
        if Path(str(directory)).name != own:
            yield f"tiers.cache_dir is {directory!r}, not a directory {own} of its own"
    output = result.config.get("output.output")
    if Path(str(output)).parent.name != own:
        yield f"output.output is {output!r}, not a file in a directory {own} of its own"


def _shared_results(tree: Tree) -> Iterator[Look]:
    hosts = {result.hostname for result in tree.ranks}
    if len(hosts) > 1:
        yield well(f"results of {len(hosts)} hosts are here")
        return
    yield from _unread(tree)
    missing = next((flaw for flaw in tree.flaws if flaw.kind == MISSING), None)
    launched = tree.plan is not None and bool(tree.plan.launch)
    if missing is not None and launched:
        yield invalid(f"has no result, and all others are of {', '.join(hosts)}: is "
                     "the results directory the same on every host?", missing.path)  # fmt: skip
    else:
        yield well("all ranks ran on one host")


# --- 6.3.4: the aggregates -------------------------------------------------------------------


def _aggregates(*names: str) -> TreeRule:
    """The launcher's own summary has the aggregates that follow from the ranks' results."""

    def look(tree: Tree) -> Iterator[Look]:
        files = _summaries(tree)
        if not files:
            yield unknown(f"there is no {SUMMARY}*.json to compare with")
        for path in files:
            yield from _compared(tree, path, names)

    return look


def _summaries(tree: Tree) -> list[Path]:
    return sorted(tree.place.run.glob(f"{SUMMARY}*.json"))


def _compared(tree: Tree, path: Path, names: Sequence[str]) -> Iterator[Look]:
    where = tree.place.name(path)
    try:
        document = orjson.loads(result_bytes(path))
        told = {str(option): document["options"][str(option)] for option in tree.expected.options}
    except (UsageError, orjson.JSONDecodeError, KeyError, TypeError):
        yield invalid("is no summary with every option in it", where)
        return
    seen = 0
    for option in tree.expected.options:
        if tree.flaws_of(option):
            yield unknown(f"option {option} is incomplete, so nothing can be added up", where)
            continue
        found = by_the_rules(tree.of(option))
        for name in names:
            value = told[str(option)].get(name) if isinstance(told[str(option)], Mapping) else None
            if value is None and found[name] is None:
                continue
            if value is None:
                yield unknown(f"option {option} has no {name}", where)
            elif not _same(value, found[name]):
                message = (
                    f"option {option}: {name} is {value!r}, and the ranks give {found[name]!r}"
                )
                yield invalid(message, where)
            seen += 1
    if seen:
        yield well(f"{', '.join(names)} follow from the ranks' results", where)


def _same(value: Any, found: float | None) -> bool:
    number = type(value) is float or (type(value) is int and abs(value) < 2**63)
    return number and isclose(value, found or 0.0, rel_tol=1e-9, abs_tol=1e-12)


def _latency_validity(tree: Tree) -> Iterator[Look]:
    for option in tree.expected.options:
        entries = [result.storage_entries for result in tree.of(option)]
        if entries and not any(entries):
            yield invalid(
                "storage_entries is 0 for every rank: only RAM was used", f"option_{option}"
            )
    some = [r.path for r in tree.ranks if r.storage_entries == 0]
    yield from _unread(tree)
    yield well(f"storage was used ({len(some)} of {len(tree.ranks)} ranks had only RAM)")


def _headline(tree: Tree) -> Iterator[Look]:
    for option in tree.expected.options:
        where = f"option_{option}"
        if tree.flaws_of(option):
            yield unknown("the option is incomplete and has no headline", where)
            continue
        values = by_the_rules(tree.of(option))
        absent = [name for name in HEADLINE if not values[name]]
        if absent:
            yield invalid(f"has no {', '.join(absent)}: storage moved too little for it", where)
    for path in _summaries(tree):
        yield from _miscounted(tree, path)
    yield well(f"all four figures are there, of {tree.expected.ranks} ranks")


def _miscounted(tree: Tree, path: Path) -> Iterator[Look]:
    """Yield what the launcher's summary says of ranks and trials that is not so: the headline is
    told with their number."""
    expected, where = tree.expected, tree.place.name(path)
    try:
        rows = [document := orjson.loads(result_bytes(path)), *document["options"].values()]
        counts = [(name, row[name]) for row in rows for name in _counts(expected) if name in row]
    except (UsageError, orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return  # which the aggregates say
    for name, value in dict.fromkeys((name, repr(value)) for name, value in counts):
        if value != repr(_counts(expected)[name]) and not tree.flaws:
            yield invalid(
                f"{name} is {value}, and the results give {_counts(expected)[name]}", where
            )


def _counts(expected: Expected) -> Mapping[str, int | bool]:
    ranks, trials = expected.ranks, expected.trials
    return {
        "total_ranks": ranks, "rank_count": ranks, "trials_per_option": trials,
        "trial_count": trials, "partial_failure": False,
    }  # fmt: skip


# --- 6.4 to 6.6 ------------------------------------------------------------------------------


def _posix_cache_dir(tree: Tree) -> Iterator[Look]:
    looked = {r.path: r.environment.get("same_filesystem") for r in tree.ranks}
    if tree.manifest is not None:
        looked[MANIFEST] = tree.manifest.record.environment.get("same_filesystem", True)
    for where, same in looked.items():
        if same not in (False, None):
            yield invalid(f"same_filesystem is {same!r}: cache and results share one", where)
    yield from _unread(tree)
    if tree.manifest is None and None in looked.values():
        yield unknown(f"where the results were written is not recorded, and there is no {MANIFEST}")
    yield well("cache and results were on different file systems")


_NO_CACHE = {
    "direct": "O_DIRECT, which no page cache serves",
    "uring": "O_DIRECT by io_uring, which no page cache serves",
    "buffered": "dropped from the page cache before each read, as the reference does",
}
"""How each engine reads cold."""


def _posix_io(tree: Tree) -> Iterator[Look]:
    """What the rule describes is a file for each object that is durable before its write counts,
    and a read that the device serves: the passport's rules hold that against the kernel."""
    yield from _each(tree, _warm, "a file for each object, synced before it counts, read cold")
    ways = {_NO_CACHE[name] for r in tree.ranks for name in _engines(r) if name in _NO_CACHE}
    yield well(
        f"satisfied, not imitated: {'; '.join(sorted(ways)) or 'no bytes'}. Other than there, a "
        "file has no .npy header, and device write latency is create, write, fsync and close where "
        "the reference counts the fsync alone, so it is never shorter; --personality reference "
        "does as the reference (OPEN)"
    )


def _engines(result: RankResult) -> set[str]:
    names = (result.storage.get("engine"), result.storage.get("write_engine"))
    return {str(name) for name in names if name is not None}


def _warm(result: RankResult) -> Iterator[str]:
    other = sorted(_engines(result) - set(_NO_CACHE))
    if other:
        yield f"engine {', '.join(other)} neither goes past the page cache nor drops it"
    if result.fsync != "object":
        yield f"fsync {result.fsync}: a write counts before its bytes are durable"
    if result.storage.get("layout") not in ("file", None):
        yield f"layout {result.storage.get('layout')}: an object is no file of its own"


def _gateway(tree: Tree) -> Iterator[Look]:
    def direct(result: RankResult) -> Iterator[str]:
        directories = result.config.get("tiers.cache_dir")
        for directory in directories if isinstance(directories, list) else [directories]:
            if "://" in str(directory):
                yield f"tiers.cache_dir is {directory!r}: mount the bucket, and name the mount"

    yield from _each(tree, direct, "every cache directory is one of a file system")


_BEHIND_A_GATEWAY = re.compile(r"nfs|cifs|smb|fuse")


def _latency_scope(tree: Tree) -> Iterator[Look]:
    def mounted(result: RankResult) -> Json:
        found = result.environment.get("filesystem")
        return found if isinstance(found, Mapping) else {}

    def unrecorded(result: RankResult) -> Iterator[str]:
        kind = str(mounted(result).get("type"))
        if _BEHIND_A_GATEWAY.match(kind) and not mounted(result).get("mount_options"):
            yield f"is behind {kind}, and its mount options are not recorded"

    for result in tree.ranks:
        if not mounted(result).get("type"):
            yield unknown("says nothing of the file system behind it", result.path)
    yield from _each(tree, unrecorded, "file systems and their mount options are recorded")


@cache
def _defaults(option: int) -> Mapping[str, Any]:
    config = load_config(None, MLPERF_OPTIONS[option].overrides())
    plain: dict[str, Any] = orjson.loads(orjson.dumps(to_mapping(config)))
    return dict(flat(plain))


_HAS_ITS_OWN_RULE = ("autoscaler.enabled",)


def _immutable(tree: Tree) -> Iterator[Look]:
    yield from _each(tree, _changed, "nothing else is set")
    if tree.manifest is not None and tree.manifest.plan.flags:
        yield invalid(f"flags: {' '.join(map(str, tree.manifest.plan.flags))}", MANIFEST)


def _changed(result: RankResult) -> Iterator[str]:
    """Options that are at neither the rules' value nor the default of this version."""
    known = MLPERF_OPTIONS.get(result.spot.option)
    if known is None:
        return
    own = (*known.overrides(), *_HAS_ITS_OWN_RULE)
    defaults, model = _defaults(result.spot.option), f"model_configs.{known.model}."
    yield from _share_of_space(result, defaults["tiers.free_share"])
    for name, value in result.config.items():
        if name in own or name.startswith(OWN_OPTIONS):
            continue
        if (name in defaults or name.startswith(model)) and value not in (
            defaults.get(name), PUBLISHED.get(name)
        ):  # fmt: skip
            yield f"{name} is {value!r} (default {defaults.get(name)!r})"


def _share_of_space(result: RankResult, default: float) -> Iterator[str]:
    """Ranks share the free space evenly: those of a machine, or all of a job."""
    share, sharers = (
        result.config.get("tiers.free_share"),
        {1, result.mpi.on_machine, result.mpi.ranks},
    )
    if share not in [default / count for count in sharers if count]:
        yield f"tiers.free_share is {share!r} (default {default!r}, shared by the ranks)"


def _open_allowances(tree: Tree) -> Iterator[Look]:
    if tree.division != OPEN:
        yield nothing("only OPEN has allowances")
        return
    if tree.plan is None:
        yield unknown(f"what differs from CLOSED is not recorded: there is no {_RECORDS}")
        return
    said = tree.deviations if tree.launch is None else tuple(_differences(tree, tree.plan))
    yield well(f"differs from CLOSED in {'; '.join(said) or 'nothing that is recorded'}")


def _differences(tree: Tree, plan: PlanRecord) -> Iterator[str]:
    """Yield in what a sequence of the launcher is not as in CLOSED."""
    yield from _unlocked(plan)
    departures = {
        (r.spot.option, text) for r in tree.ranks for text in (*_workload(r), *_changed(r))
    }
    yield from (f"option {option}: {text}" for option, text in sorted(departures))


def _invocation(tree: Tree) -> Iterator[Look]:
    if tree.plan is None:
        yield unknown(f"the call is not recorded: there is no {_RECORDS}")
    elif tree.plan.command:
        words = " ".join(map(str, tree.plan.command))
        yield well(f"recorded: {words[:200]}", tree.record_name or "")
    else:
        yield invalid("the call is not recorded", tree.record_name or "")


# --- 2.1.9: the machines ----------------------------------------------------------------------

_SAME_SYSTEM = (
    *("program.version", "program.git_commit", "python.version", "os.kernel", "cpu.model"),
    *("cpu.usable_cores", "memory.total_bytes"),
)
_SAME_DRIVE = (
    *("filesystem.type", "filesystem.mount_options", "filesystem.source"),
    *("device.name", "device.model", "device.scheduler"),
)


def _system(result: RankResult) -> Json:
    """Return what must not change: of the machine, and of each drive of the cache."""
    machine, drives = dict(flat(result.environment)), result.environment.get("drives")
    system = {name: machine.get(name) for name in (*_SAME_SYSTEM, *_SAME_DRIVE)}
    for number, drive in enumerate(drives if isinstance(drives, list) else (), start=1):
        facts = dict(flat(drive))
        system |= {f"drive {number} {name}": facts.get(name) for name in _SAME_DRIVE}
    return system


def _identical(tree: Tree) -> Iterator[Look]:
    """A host is the same machine in each trial, and all hosts have one program."""

    def differs(result: RankResult) -> Iterator[str]:
        other = _before(tree, result)
        mine, others = _system(result), _system(other)
        for name in dict.fromkeys([*mine, *others]):
            if mine.get(name) != others.get(name):
                yield f"{name} is {mine.get(name)!r}, and was {others.get(name)!r} in {other.path}"
        if result.program_version != tree.ranks[0].program_version:
            yield f"program_version is {result.program_version!r}, others have another"

    yield from _each(tree, differs, "one machine and one program behind all results")


def _before(tree: Tree, result: RankResult) -> RankResult:
    """Return the first result that has to be of the same machine and drive: of this rank on this
    host, else of the host, and of a host that is new after the first trial, of this rank."""
    first = [r for r in tree.ranks if r.spot[:2] == tree.ranks[0].spot[:2]]
    same: Sequence[Callable[[RankResult], bool]] = (
        lambda r: r.hostname == result.hostname and r.spot.rank == result.spot.rank,
        lambda r: r.hostname == result.hostname,
        lambda r: r.spot.rank == result.spot.rank,
    )
    return next((r for is_same in same for r in first if is_same(r)), result)


# --- ours ------------------------------------------------------------------------------------


def _in_turn(tree: Tree) -> Iterator[Look]:
    yield from in_turn(tree)
    yield from _unread(tree)
    yield well("ranks measured together, and trials one after another")


def _complete(tree: Tree) -> Iterator[Look]:
    for flaw in tree.flaws:
        if flaw.kind not in (TAMPERED, CPU_ONLY):
            yield invalid(f"{flaw.message} ({flaw.kind})", flaw.path)
    yield from _unread(tree)
    expected = tree.expected
    count = len(expected.options) * expected.trials * expected.ranks
    yield well(f"all {count} results are there, whole and alike")


MOST_SPREAD = 0.1
"""Coefficient of variation of a rate over the trials above which their mean says little of any."""

_RATES = tuple(name.removeprefix("aggregated_") for name in HEADLINE if "_ms" not in name)


def _spread(tree: Tree) -> Iterator[Look]:
    """The published rules have no such limit: their number is the mean however far trials differ"""
    for option in tree.expected.options:
        where = f"option_{option}"
        if tree.flaws_of(option):
            yield unknown("the option is incomplete", where)
            continue
        for name, row in trial_spread(tree.of(option), _RATES).items():
            cv = row["coefficient_of_variation"]
            if cv is None:
                yield unknown(f"{name} has no spread: {len(row['values'])} trials", where)
            elif cv > MOST_SPREAD:
                values = ", ".join(f"{value:.4g}" for value in row["values"])
                message = f"{name} varies by {cv:.1%} over the trials ({values})"
                yield invalid(f"{message}, and {MOST_SPREAD:.0%} is the most here", where)
    yield well(f"no rate varies by more than {MOST_SPREAD:.0%} over the trials")


def _intact(tree: Tree) -> Iterator[Look]:
    for flaw in tree.flaws:
        if flaw.kind == TAMPERED and flaw.path != MANIFEST:
            yield invalid(flaw.message, flaw.path)
    yield from _unread(tree)
    yield well(f"chain and numbers of {len(tree.ranks)} results come out the same")


def _chain(tree: Tree) -> Iterator[Look]:
    if tree.manifest is None:
        yield unknown(f"there is no {MANIFEST}; each result has a chain of its own")
        return
    for link, message in tree.manifest.record_changes:
        yield invalid(f"{link} {message}", MANIFEST)
    for name, message in tree.manifest.file_changes:
        yield invalid(message, name)
    for name in gone(tree.manifest, tree.place):
        yield invalid("was there when the sequence ended", name)
    yield well("every file is as the sequence left it", MANIFEST)


def _passport(tree: Tree) -> Iterator[Look]:
    def worse(result: RankResult) -> Iterator[str]:
        if result.verdict != VALID:
            yield f"is {result.verdict}: {'; '.join(result.reasons)}"

    yield from _each(tree, worse, "every rank is valid")


def _submittable(tree: Tree) -> Iterator[Look]:
    for why in tree.not_submittable:
        yield invalid(why, MANIFEST if tree.manifest is not None else "")
    if tree.manifest is not None and tree.manifest.record.status != FINISHED:
        yield invalid(f"the sequence is {tree.manifest.record.status}, not {FINISHED}", MANIFEST)
    yield from _unread(tree)
    yield well("nothing says that this is no submission")


RULES: Mapping[str, tuple[str, TreeRule]] = {
    "kvcacheFixedWorkloadPerOption": ("6.3.1.1", _closed_only(_fixed_workload)),
    "kvcacheClosedSequenceLocks": ("6.3.2.1", _closed_only(_sequence_locks)),
    "kvcacheAutoscalingProhibited": ("6.3.2.2", _closed_only(_no_autoscaling)),
    "kvcacheClientDefinition": ("6.3.3.1", _client_definition),
    "kvcacheScaleUpModel": ("6.3.3.2", _scale_up),
    "kvcachePerClientIsolation": ("6.3.3.3", _isolation),
    "kvcacheSharedResultsDir": ("6.3.3.4", _shared_results),
    "kvcacheAggregateBandwidth": (
        "6.3.4.1",
        _aggregates("aggregated_read_bandwidth_gbps", "aggregated_write_bandwidth_gbps"),
    ),
    "kvcacheAggregateThroughput": (
        "6.3.4.2",
        _aggregates("aggregated_storage_throughput_tokens_per_sec"),
    ),
    "kvcacheAggregateDeviceLatency": (
        "6.3.4.3",
        _aggregates("aggregated_device_read_p95_ms", "aggregated_device_write_p95_ms"),
    ),
    "kvcacheLatencyValidity": ("6.3.4.4", _latency_validity),
    "kvcacheHeadlineResult": ("6.3.4.5", _headline),
    "kvcachePosixCacheDir": ("6.4.1", _posix_cache_dir),
    "kvcachePosixIoModel": ("6.4.2", _posix_io),
    "kvcacheObjectViaGateway": ("6.5.1", _gateway),
    "kvcacheObjectLatencyScope": ("6.5.2", _latency_scope),
    "kvcacheClosedImmutable": ("6.6.1", _closed_only(_immutable)),
    "kvcacheOpenAllowances": ("6.6.2", _open_allowances),
    "kvcacheOpenInvocationNote": ("6.6.3", _invocation),
    "mlpstorageGeneratesHierarchy": ("1.1", directories.by_mlpstorage),
    "submitterRootDirectory": ("2.1.1", directories.submitter),
    "topLevelSubdirectories": ("2.1.2", directories.top_level),
    "requiredSubdirectories": ("2.1.5", directories.required),
    "codeDirectoryContents": ("2.1.6", directories.code),
    "systemsDirectoryFiles": ("2.1.7", directories.systems_files),
    "identicalSystemConfig": ("2.1.9", _identical),
    "systemDescription": ("ours", directories.described),
    "divisionOfPath": ("ours", directories.division),
    "trialSpread": ("ours", _spread),
    "trialsInTurn": ("ours", _in_turn),
    "completeness": ("ours", _complete),
    "intactResults": ("ours", _intact),
    "hashChain": ("ours", _chain),
    "passport": ("ours", _passport),
    "submittable": ("ours", _submittable),
}
"""By name, with the section of the published rules, or `ours`."""
