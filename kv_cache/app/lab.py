"""What cache policies find in a trace, in what synthetic users ask, or in synthetic patterns, at
many capacities. There is no time: nothing is measured and nothing is served."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from msgspec import Struct

from kv_cache.app.compiled import require_pure
from kv_cache.app.cores import StoppedError
from kv_cache.app.lab_cases import PolicyComparison
from kv_cache.app.lab_replays import Drawn, LabComparison, replay_all
from kv_cache.app.lab_tiers import NONE, PREFETCHES, TierComparison, tiers_of
from kv_cache.app.study_files import (
    Document,
    StudyFile,
    check_files,
    output_file,
    picture_file,
    planned_study,
    write_files,
)
from kv_cache.app.trace_source import SEED, RequestStream, SourceOptions, TraceSource, source_of
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.config.load import Invocation
from kv_cache.config.root import options as run_options
from kv_cache.config.schema import opt, to_mapping
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import ConfigError, PlaceError, TraceError, did_you_mean
from kv_cache.core.model import DTYPE_BITS
from kv_cache.core.residency import BITS, Residency, parts_of, read_residency
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB
from kv_cache.files.records import require_own_name
from kv_cache.files.result import Result
from kv_cache.lab.accesses import gathered
from kv_cache.lab.capacity import capacities_of
from kv_cache.lab.patterns import PATTERNS, drawn
from kv_cache.lab.variants import ADMISSIONS, ALWAYS, USUAL, variants_of
from kv_cache.result import kinds
from kv_cache.result.lab import CSV_HEAD, lab_csv, source_name
from kv_cache.result.lab_tiers import CSV_HEAD as TIERS_CSV_HEAD
from kv_cache.result.lab_tiers import tiers_csv
from kv_cache.view.parts import View

ALL = "all"
_CAPACITIES = "1%,5%,10%,25%,50%"
_PATTERN_CAPACITIES = "10%,25%,50%"
_PATTERN_BITS = 16
_SCALES = "1"
_UNSOURCED = "assumed, no source given"


@dataclass(frozen=True, kw_only=True)
class LabOptions(SourceOptions):
    """What is looked at, the policies and capacities that are compared, and the files."""

    pattern: str | None = opt(
        None, f"Synthetic patterns, not a trace; with commas, or {ALL}", flag="--pattern",
        metavar="NAMES",
    )  # fmt: skip
    policies: str = opt(
        ",".join(USUAL), "Eviction policies, with commas, and with numbers of theirs, as "
        "regret-aware:regret_weight=0; there is also learned, which is slow",
        flag="--policies", metavar="NAMES",
    )  # fmt: skip
    admission: str = opt(
        ALWAYS, "Each policy behind each of these, with commas: "
        f"{', '.join(ADMISSIONS)}; and with numbers, as second-hit:memory=1000",
        flag="--admission", metavar="NAMES",
    )  # fmt: skip
    capacities: str | None = opt(
        None, "Shares of all that is asked for (10%), bytes (64GiB), or 9971blocks; if not given, "
        f"{_CAPACITIES}, or {_PATTERN_CAPACITIES} of patterns", flag="--capacities", metavar="LIST",
    )  # fmt: skip
    refusing: bool = opt(
        False, "Also MIN that may refuse a block, which bounds policies behind an admission policy "
        "(and is there beside them)", flag="--refusing",
    )  # fmt: skip
    tiers: str | None = opt(
        None, "Several tiers in place of one cache, with commas, the fastest first: "
        "NAME=ROOM:LATENCY:RATE, as dram=64GiB:1us:80GB/s, and :TYPE where blocks are held so; a "
        "block is in one of them at a time", flag="--tiers", metavar="LIST",
    )  # fmt: skip
    tier_scales: str = opt(
        _SCALES, "Factors of all rooms of --tiers, with commas", flag="--tier-scales",
        metavar="LIST",
    )  # fmt: skip
    prefetch: str = opt(
        NONE, f"What is brought to the fastest of --tiers ahead, with commas: "
        f"{', '.join(PREFETCHES)}", flag="--prefetch", metavar="NAMES",
    )  # fmt: skip
    residency: str | None = opt(
        None, f"Types in which blocks are held, with commas: {', '.join(BITS)}, or parts of each "
        "block, as layers or groups of heads, in several: 4fp16+28int4; if not given, their own",
        flag="--residency", metavar="TYPES",
    )  # fmt: skip
    quant_group: int = opt(
        0, "N elements of 8 bits or fewer share 4 bytes of scales; 0 = none are stored", low=0,
        high=1_000_000, flag="--quant-group", metavar="N",
    )  # fmt: skip
    dequant: Mapping[str, float] = opt(
        {}, "Time for widening one stored byte of a type, yours to know; if not given, it is not "
        "counted", unit="ns", low=0, high=1e9, flag="--dequant", metavar="TYPE=NS,...",
    )  # fmt: skip
    dequant_source: str | None = opt(
        None, f"Where --dequant is from; if not given, {_UNSOURCED}", flag="--dequant-source",
        metavar="TEXT",
    )  # fmt: skip
    seeds: int = opt(10, "Seeds of each pattern", low=1, high=1000, flag="--seeds", metavar="N")
    pages: int | None = opt(
        None, "Pages of each pattern; if not given, each has its own", low=1, high=10_000_000,
        flag="--pages", metavar="N",
    )  # fmt: skip
    length: int | None = opt(
        None, "Accesses of each pattern; if not given, each has its own", low=1, high=10_000_000,
        flag="--length", metavar="N",
    )  # fmt: skip
    block_kib: float = opt(
        2048.0, "A page of a pattern, at 16 bits an element", unit="KiB", low=0.001, high=1e9,
        flag="--block-kib", metavar="KIB",
    )  # fmt: skip
    size_spread: float = opt(
        0.0, "Pages of a pattern differ in size by up to this share", low=0, high=0.99,
        flag="--size-spread", metavar="SHARE",
    )  # fmt: skip
    json: bool = opt(False, "Print the whole document", flag="--json")
    output: str | None = opt(
        None, "Write the document there", flag="--output", short="-o", metavar="FILE"
    )
    csv: str | None = opt(
        None, "Write a row for each policy and capacity", flag="--csv", metavar="FILE"
    )
    plot: str | None = opt(
        None, "Draw the curves: FILE.svg, .png or .pdf", flag="--plot", metavar="FILE"
    )
    pure: bool = opt(False, "Do not use the compiled engine (see compile)", flag="--pure")


_SHAPE = ("seeds", "pages", "length", "block_kib", "size_spread")
"""Options of patterns alone, in the order of the document."""


class PatternSource(Struct, frozen=True, kw_only=True):
    """The patterns that are drawn, with the seed of the first. `progress`: whether it is shown."""

    names: Sequence[str]
    seed: int
    progress: bool


def configured(options: LabOptions, invocation: Invocation) -> TraceSource | PatternSource:
    """Return what is looked at; flags of `run` change what is asked. Raises ConfigError."""
    if options.pattern is not None:
        return _pattern_source(options, options.pattern, invocation)
    usual = LabOptions()
    for name in _SHAPE:
        if getattr(options, name) != getattr(usual, name):
            raise ConfigError(f"{_flag(name)} is of patterns; give --pattern too")
    source = source_of(options, invocation)
    _refuse_tiers(invocation)
    return source


def lab(
    options: LabOptions,
    source: TraceSource | PatternSource,
    *,
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
) -> Result | None:
    """Replay a `configured` source through every policy, and write the result; None if `stop` ended
    it, when nothing is written. Raises UsageError."""
    caught = stop or Interrupts()
    require_pure(options.pure)
    comparison, files = _checked(options, source)

    def study() -> Document:
        if isinstance(source, PatternSource):
            return _patterns_document(options, source, comparison, caught, progress)
        return _trace_document(source.open(progress), comparison, caught, progress)

    document = unless_stopped(caught, study)
    return None if document is None else write_files(files, document, caught)


def planned_lab(options: LabOptions, source: TraceSource | PatternSource) -> View:
    """Check a study of a `configured` source and show what it would do. Raises UsageError."""
    comparison, files = _checked(options, source)
    if isinstance(source, PatternSource):
        sequences = len(source.names) * options.seeds
        content = f"{', '.join(source.names)}, with {options.seeds:,} seeds each"
    else:
        sequences = 1
        first = "all" if source.requests is None else f"first {source.requests:,}"
        path = source.config.trace_path()
        name = "synthetic users" if path is None else f"trace {path}"
        content = f"{first} requests of {name}"
    replays = sequences * comparison.replays
    return planned_study([("source", content), ("replays", f"{replays:,}")], files)


def _checked(
    options: LabOptions, source: TraceSource | PatternSource
) -> tuple[LabComparison, Sequence[StudyFile]]:
    comparison, files = _comparison(options), _files(options)
    trace = source.config.trace_path() if isinstance(source, TraceSource) else None
    check_files(files, {} if trace is None else {"the trace": trace})
    return comparison, files


class _StudyStoppedError(BaseException):
    """A signal came before there was anything to write. No handler on the way takes it for an
    error of what it was doing."""


def unless_stopped(caught: Interrupts, study: Callable[[], Document]) -> Document | None:
    """Return what `study` returns, or None if a signal came. There is nothing to put away on the
    way, so that a signal may end it at any place but where it takes that over (processes)."""

    def stop() -> None:
        raise _StudyStoppedError  # each time: within a finaliser the first would be lost

    caught.on_signal = stop
    try:
        return None if caught.came else study()
    except (_StudyStoppedError, StoppedError):
        return None
    finally:
        caught.on_signal = ignore  # what is being written will be whole


# --- what is compared ------------------------------------------------------------------------


def _comparison(options: LabOptions) -> LabComparison:
    """Raises ConfigError."""
    if options.tiers is not None:
        return _tier_comparison(options, options.tiers)
    if (options.tier_scales, options.prefetch) != (_SCALES, NONE):
        raise ConfigError("--tier-scales and --prefetch are of several tiers; give --tiers too")
    usual = _CAPACITIES if options.pattern is None else _PATTERN_CAPACITIES
    if options.dequant_source and not options.dequant:
        raise ConfigError("--dequant-source is the source of --dequant, which is not given")
    variants = variants_of(options.policies, options.admission, ("--policies", "--admission"))
    return PolicyComparison(
        variants=variants,
        capacities=capacities_of(options.capacities or usual, "--capacities"),
        residencies=_residencies(options),
        cost_source=options.dequant_source or _UNSOURCED,
        refusing=options.refusing or any(variant.gate() is not None for variant in variants),
    )


def _tier_comparison(options: LabOptions, tiers: str) -> TierComparison:
    """Raises ConfigError."""
    for flag, unwanted in (
        ("--capacities", options.capacities), ("--refusing", options.refusing),
        ("--admission", options.admission != ALWAYS),
    ):  # fmt: skip
        if unwanted:
            raise ConfigError(f"{flag} is of one cache; leave it out, or --tiers")

    def held_as(name: str) -> Residency:
        return _held_as(options, name, "--tiers")

    planned = tiers_of(tiers, "--tiers", held_as)
    held = [tier.residency.name for tier in planned if tier.residency is not None]
    return TierComparison(
        tiers=planned,
        variants=variants_of(options.policies, ALWAYS, ("--policies", "--admission")),
        prefetches=_names(options.prefetch, PREFETCHES, "--prefetch", "prefetch policy"),
        scales=_scales(options.tier_scales),
        residencies=_residencies(options, held),
    )


def _scales(text: str) -> Sequence[float]:
    try:
        scales = [float(part) for part in text.split(",")]
    except ValueError:
        scales = []
    if not scales or not all(0 < each <= 1000 for each in scales):
        raise ConfigError(f"--tier-scales is {text!r}; give factors above 0, as 1,0.5,0.25")
    _once([str(each) for each in scales], "--tier-scales")
    return scales


def _held_as(options: LabOptions, name: str, flag: str) -> Residency:
    group, costs_ns = options.quant_group, options.dequant
    return read_residency(name, flag, group=group, costs_ns=costs_ns)


def _residencies(
    options: LabOptions, elsewhere: Collection[str] = ()
) -> Sequence[Residency | None]:
    """`elsewhere` are types in which single tiers hold blocks."""
    costs, group = options.dequant, options.quant_group
    for name in costs:
        _require_known(name, BITS, "--dequant", "type")
    if options.residency is None and not elsewhere:
        if costs or group:
            flag = "--dequant" if costs else "--quant-group"
            raise ConfigError(f"{flag} is of blocks held in other types; give --residency too")
        return [None]
    listed = options.residency
    names = [] if listed is None else [part.strip() for part in listed.split(",")]
    held = [_held_as(options, name, "--residency") for name in _once(names, "--residency")]
    types = {of for name in (*names, *elsewhere) for _, of in parts_of(name)}
    for name in costs:
        if name not in types:
            raise ConfigError(f"--dequant has {name}, in which --residency holds nothing")
    return held or [None]


def _names(text: str, known: Collection[str], flag: str, what: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        _require_known(name, known, flag, what)
    return _once(names, flag)


def _once(names: list[str], flag: str) -> list[str]:
    """Return the names. Raises ConfigError if one is there twice."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f"{flag}: duplicate {name}; keep one")
    return names


def _require_known(name: str, known: Collection[str], flag: str, what: str) -> None:
    if name not in known:
        raise ConfigError(f"{flag}: {name!r} is not a {what}.{did_you_mean(name, known)}")


def _files(options: LabOptions) -> Sequence[StudyFile]:
    files = []
    several = options.tiers is not None
    if options.output is not None:
        schema = kinds.LAB_TIERS if several else kinds.LAB
        files.append(output_file(options.output, f"{schema.partition('/')[0]}/"))
    if options.csv is not None:
        path, form = Path(options.csv), tiers_csv if several else lab_csv
        files.append(StudyFile(name="csv", path=path, check=_check_csv, form=form))
    if options.plot is not None:
        files.append(picture_file(options.plot, Path(options.plot)))
    return files


def _check_csv(path: Path, flag: str) -> None:
    if path.suffix.lower() != ".csv":
        raise PlaceError(f"{flag} {path} does not end in .csv; name it so")
    heads = tuple(",".join(head) for head in (CSV_HEAD, TIERS_CSV_HEAD))
    require_own_name(path, flag, lambda first: first.startswith(heads))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# --- a trace, or users -----------------------------------------------------------------------


def _refuse_tiers(invocation: Invocation) -> None:
    """A cache of the lab is none of the tiers of a run: its options would change nothing."""
    for path in invocation.overrides:
        if path.split(".")[0] in ("tiers", "policies"):
            raise ConfigError(
                f"{run_options()[path].flag or path} is of a run's tiers, and lab has none; give "
                "--policies, --admission and --capacities"
            )


class _OneSequence(Struct, frozen=True, kw_only=True):
    """A trace, or what users ask."""

    names: Sequence[str]
    element_bits: int
    sequence: Drawn
    seeds: int = 1

    def drawn(self, case: int, number: int) -> Drawn:
        return self.sequence


def _trace_document(
    stream: RequestStream,
    comparison: LabComparison,
    caught: Interrupts,
    progress: Progress,
) -> Document:
    """Raises TraceError and ConfigError."""
    seed = stream.config.run.seed or SEED
    planned_rows = count()
    accesses = gathered(request for request, _ in zip(stream.plan(), planned_rows, strict=False))
    source = stream.load.source.describe()
    name = source_name(source)
    if stream.survey is not None:
        source = {**source, "asked_rows": next(planned_rows)}
    if not accesses.lookups:
        raise TraceError(
            f"{name}: no request asks for a block; give --block-tokens, or a trace with longer "
            "prompts"
        )
    if stream.model.kv_quant_group and comparison.residencies != [None]:
        raise ConfigError(
            f"--residency: {stream.model.name} has scales in its own type; give --kv-dtype float16"
        )
    bits = DTYPE_BITS[stream.model.dtype]
    sequence = Drawn(seed=Seed(seed).child("lab"), accesses=accesses)
    sequences = _OneSequence(names=[name], element_bits=bits, sequence=sequence)
    (results,) = replay_all(comparison, sequences, caught, progress)
    return comparison.document(
        [comparison.case(name, results, None)],
        seed=seed,
        source={"requests": accesses.requests, **source},
        element_bits=bits,
        config=to_mapping(stream.config),
    )


# --- patterns --------------------------------------------------------------------------------


def _pattern_source(options: LabOptions, names: str, invocation: Invocation) -> PatternSource:
    for flag, unwanted in (
        ("--users", options.users), ("--requests", options.requests), (options.path, options.path),
    ):  # fmt: skip
        if unwanted:
            raise ConfigError(f"{flag} and --pattern are both given; keep one of them")
    overrides = dict(invocation.overrides)
    seed, progress = overrides.pop("run.seed", SEED), overrides.pop("output.progress", True)
    for path in ("--config", *overrides) if invocation.config_path else overrides:
        raise ConfigError(f"{path} says nothing of a pattern; leave its option out")
    known = list(PATTERNS)
    chosen = known if names == ALL else _names(names, known, "--pattern", "pattern")
    return PatternSource(names=chosen, seed=int(seed), progress=bool(progress))


class _PatternSequences(Struct, frozen=True, kw_only=True):
    """Each pattern with each seed."""

    options: LabOptions
    seed: int
    names: Sequence[str]
    element_bits: int = _PATTERN_BITS

    @property
    def seeds(self) -> int:
        return self.options.seeds

    def drawn(self, case: int, number: int) -> Drawn:
        """Raises ConfigError."""
        options = self.options
        return draw_pattern(
            self.names[case], self.seed, number, pages=options.pages, length=options.length,
            nbytes=round(options.block_kib * KIB), spread=options.size_spread,
        )  # fmt: skip


def _patterns_document(
    options: LabOptions, source: PatternSource, comparison: LabComparison, caught: Interrupts,
    progress: Progress,
) -> Document:  # fmt: skip
    sequences = _PatternSequences(options=options, seed=source.seed, names=source.names)
    results = replay_all(comparison, sequences, caught, progress)
    cases = [
        comparison.case(name, of_case, PATTERNS[name])
        for name, of_case in zip(source.names, results, strict=True)
    ]
    shape = {name: getattr(options, name) for name in _SHAPE}
    return comparison.document(
        cases,
        seed=source.seed,
        source={"patterns": source.names, **shape},
        element_bits=_PATTERN_BITS,
        config=None,
    )


def draw_pattern(
    name: str, seed: int, number: int, *, pages: int | None, length: int | None, nbytes: int,
    spread: float = 0.0,
) -> Drawn:  # fmt: skip
    """Draw a pattern with the seed of this number. Raises ConfigError."""
    pattern = PATTERNS[name]
    pages = pages or pattern.pages
    if pages < pattern.least:
        raise ConfigError(f"--pages is {pages}; {name} has {pattern.least} or more")
    drawn_by = Seed(seed).child("lab", name, number)
    accesses = drawn(
        pattern, drawn_by, pages=pages, length=length or pattern.length, nbytes=nbytes,
        spread=spread,
    )  # fmt: skip
    return Drawn(seed=drawn_by, accesses=accesses)
