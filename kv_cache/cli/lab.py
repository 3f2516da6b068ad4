"""`kv-cache.py lab PATH | --users | --pattern NAME`: what policies find at many capacities, without
time. Nothing is measured and nothing is served.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kv_cache.app.compiled import PURE, engine_name
from kv_cache.bench.cache_dir import check_output_file
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.cli.flags import parse
from kv_cache.cli.parsing import CommandParser, own_and_rest
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.trace import SEED, USERS_REQUESTS, asked_of, path_in
from kv_cache.config.root import Config
from kv_cache.config.root import options as known_options
from kv_cache.config.schema import to_mapping
from kv_cache.core.errors import ConfigError, PlaceError, TraceError, UsageError, did_you_mean
from kv_cache.core.exits import Exit
from kv_cache.core.model import DTYPE_BITS
from kv_cache.core.seed import Seed
from kv_cache.core.text import as_json
from kv_cache.core.units import KIB
from kv_cache.files.keep import Kept, keep
from kv_cache.files.records import require_own_name
from kv_cache.installing import install_hint
from kv_cache.lab.accesses import Accesses, gathered
from kv_cache.lab.capacity import Capacity, capacities_of
from kv_cache.lab.patterns import PATTERNS, drawn
from kv_cache.lab.residency import BITS, SCALED_BITS, Residency
from kv_cache.lab.study import Base, Study, study
from kv_cache.lab.table import table_of
from kv_cache.lab.variants import ADMISSIONS, ALWAYS, USUAL, PolicyVariant, variants_of
from kv_cache.result.lab import CSV_HEAD, OWN, lab_csv, lab_document, source_name
from kv_cache.view.picture.plot import (
    FORMATS,
    draw,
    installed,
    require_ours,
    write_picture,
)
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

CAPACITIES = "1%,5%,10%,25%,50%"
OF_PATTERNS = "10%,25%,50%"
SEEDS = 10
MOST_SEEDS = 1000
BLOCK_KIB = 2048.0
MOST_PAGES = MOST_LENGTH = 10_000_000
MOST_GROUP = 1_000_000
ALL = "all"
_PATTERN_BITS = 16
_UNSOURCED = "assumed, no source given"
_OF_PATTERNS = ("seeds", "pages", "length", "block_kib", "size_spread")

_ABOUT = """\
What would policies find in this trace, at these capacities? One pass; no clock, no device.

Beside the policies stand the cache without limits and Belady's MIN, which no policy exceeds. Hits
are counted twice: by blocks (each block for itself) and by prefix (only while all blocks before it
in its request are hits, as attention needs). Policies are put in an order only where that is shown.
"""

_EPILOG = f"""\
patterns: {", ".join(PATTERNS)}

examples:
  kv-cache.py lab mooncake.jsonl
  kv-cache.py lab mooncake.jsonl --capacities 100GiB,1TiB,9971blocks --csv found.csv
  kv-cache.py lab mooncake.jsonl --residency fp16,int4 --dequant int4=0.02 \\
      --dequant-source "kernel X on device Y, 2026-03"
  kv-cache.py lab --pattern all --seeds 20

Options of run that change what is asked may follow (--block-tokens, --model, --trace-format,
--skip-bad-rows, --seed, ...); with --pattern only --seed. See run --help-all.

exit code: 0 done, 1 a file is not where it was to be, 2 bad input, 130 and 143 interrupted
"""


def main(argv: Sequence[str]) -> int:
    """The exit code. UsageError is the caller's to print."""
    options, rest = own_and_rest(_parser(), argv)
    asked = _checked(options)
    _check_places(options)
    made = _trace if options.pattern is None else _patterns
    with interrupts() as caught:
        try:
            document = _until(caught, lambda: made(options, asked, rest))
        except _StoppedError:
            print(f"kv-cache: lab: {caught.name}: nothing is written", file=sys.stderr)
            return caught.exit_code
        written = _write(options, document)
        return caught.exit_code or (Exit.DONE if written else Exit.EARLY)


class _StoppedError(BaseException):
    """A signal came before there was anything to write. Nobody on the way takes it for an error of
    what it was doing."""


def _until(caught: Interrupts, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What is made; there is nothing to put away on the way, so that a signal may end it at any
    place. Raises _StoppedError."""

    def stop() -> None:
        raise _StoppedError  # each time: within a finaliser the first would be lost

    caught.on_signal = stop
    try:
        if caught.came:
            raise _StoppedError
        return make()
    finally:
        caught.on_signal = _go_on


def _go_on() -> None:
    """What is being written will be whole."""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py lab",
        usage="%(prog)s PATH | --users | --pattern NAMES [option ...]",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--users", action="store_true", help="synthetic users, not a trace")
    add(
        "--requests",
        type=int,
        metavar="N",
        help=f"the first N requests [default: all; of synthetic users {USERS_REQUESTS}]",
    )
    add("--pattern", metavar="NAMES", help=f"synthetic patterns, with commas, or {ALL}")
    add(
        "--policies",
        metavar="NAMES",
        default=",".join(USUAL),
        help="with commas, and with numbers of theirs, as regret-aware:regret_weight=0 "
        "[default: %(default)s; there is also learned, which is slow]",
    )
    add(
        "--admission",
        metavar="NAMES",
        default=ALWAYS,
        help=f"each policy behind each of these, with commas: {', '.join(ADMISSIONS)}; and with "
        "numbers, as second-hit:memory=1000 [default: %(default)s]",
    )
    add(
        "--capacities",
        metavar="LIST",
        help="shares of all that is asked for (10%%), bytes (64GiB), or 9971blocks "
        f"[default {CAPACITIES.replace('%', '%%')}; of patterns {OF_PATTERNS.replace('%', '%%')}]",
    )
    add(
        "--refusing",
        action="store_true",
        help="also MIN that may refuse a block, which bounds policies behind an admission policy "
        "(and is there beside them)",
    )
    add(
        "--residency",
        metavar="TYPES",
        help=f"blocks are held in these types, with commas: {', '.join(BITS)} [default: their own]",
    )
    add(
        "--quant-group",
        type=int,
        default=0,
        metavar="N",
        help="N elements of 8 bits or fewer share 4 bytes of scales [default: none are stored]",
    )
    add(
        "--dequant",
        metavar="TYPE=NS,...",
        help="ns for widening one stored byte, yours to know [default: not counted]",
    )
    add("--dequant-source", metavar="TEXT", help=f"where that is from [default: {_UNSOURCED}]")
    _add_of_patterns(parser)
    add("--json", action="store_true", help="print the whole document")
    add("-o", "--output", type=Path, metavar="FILE", help="write the document there")
    add(PURE, action="store_true", help="do not use the compiled engine (see compile)")
    add("--csv", type=Path, metavar="FILE", help="write a row for each policy and capacity")
    add("--plot", type=Path, metavar="FILE", help="draw the curves: FILE.svg, .png or .pdf")
    return parser  # fmt: skip


def _add_of_patterns(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=int, metavar="N", help=f"of patterns: how many [default {SEEDS}]")
    add("--pages", type=int, metavar="N", help="of patterns [default: each has its own]")
    add("--length", type=int, metavar="N", help="of patterns [default: each has its own]")
    add(
        "--block-kib",
        type=float,
        metavar="KIB",
        help=f"of patterns: a page, at 16 bits an element [default {BLOCK_KIB:g}]",
    )
    add("--size-spread", type=float, metavar="SHARE",
        help="of patterns: pages differ in size by up to this share [default 0]")  # fmt: skip


# --- what is asked for -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    variants: Sequence[PolicyVariant]
    capacities: Sequence[Capacity]
    residencies: Sequence[Residency | None]  # None: as they are
    cost_source: str
    refusing: bool


def _checked(options: argparse.Namespace) -> _Asked:
    """Raises ConfigError."""
    given = options.capacities
    if given is None:
        given = CAPACITIES if options.pattern is None else OF_PATTERNS
    if options.dequant_source and not options.dequant:
        raise ConfigError("--dequant-source tells where --dequant is from, which is not given")
    variants = variants_of(options.policies, options.admission, ("--policies", "--admission"))
    return _Asked(
        variants=variants,
        capacities=capacities_of(given, "--capacities"),
        residencies=_residencies(options),
        cost_source=options.dequant_source or _UNSOURCED,
        refusing=options.refusing or any(variant.gate() is not None for variant in variants),
    )


def _names(text: str, known: Sequence[str], flag: str, what: str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    for place, name in enumerate(found):
        if name not in known:
            raise ConfigError(f"{flag}: {name!r} is no {what}.{did_you_mean(name, known)}")
        if name in found[:place]:
            raise ConfigError(f"{flag}: {name} stands twice; keep one")
    return found


def _residencies(options: argparse.Namespace) -> list[Residency | None]:
    if not 0 <= options.quant_group <= MOST_GROUP:
        raise ConfigError(
            f"--quant-group is {options.quant_group}; it must be at least 0 and at most "
            f"{MOST_GROUP}"
        )
    costs = _costs(options.dequant)
    if options.residency is None:
        if costs or options.quant_group:
            flag = "--dequant" if costs else "--quant-group"
            raise ConfigError(f"{flag} is of blocks held in other types; give --residency too")
        return [None]
    names = _names(options.residency, list(BITS), "--residency", "type")
    for name in costs:
        if name not in names:
            raise ConfigError(f"--dequant has {name}, in which --residency holds nothing")
    return [
        Residency(name=name, group=options.quant_group, cost_ns=costs.get(name)) for name in names
    ]


def _costs(text: str | None) -> dict[str, float]:
    costs: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, number = part.strip().partition("=")
        if name not in BITS:
            raise ConfigError(f"--dequant: {name!r} is no type.{did_you_mean(name, BITS)}")
        if name in costs:
            raise ConfigError(f"--dequant: {name} stands twice; keep one")
        try:
            costs[name] = float(number)
        except ValueError:
            costs[name] = -1.0
        if not 0 <= costs[name] < math.inf:
            raise ConfigError(
                f"--dequant: {part.strip()!r} must be TYPE=NS, nanoseconds a stored byte from 0 on"
            )
    return costs


def _check_places(options: argparse.Namespace) -> None:
    """Raises UsageError for what cannot be written."""
    places = {
        flag: path
        for flag, path in (
            ("--output", options.output), ("--csv", options.csv), ("--plot", options.plot),
        )
        if path is not None
    }  # fmt: skip
    if len({path.resolve() for path in places.values()}) < len(places):
        raise PlaceError(f"{' and '.join(places)} name the same file; give each its own")
    if options.output is not None:
        check_output_file(options.output, "kv-cache-lab/")
    if options.csv is not None:
        if options.csv.suffix.lower() != ".csv":
            raise PlaceError(f"--csv {options.csv} does not end in .csv; name it so")
        require_own_name(options.csv, "--csv", lambda first: first.startswith(",".join(CSV_HEAD)))
    if options.plot is not None:
        _check_picture(options.plot)


def _check_picture(path: Path) -> None:
    form = path.suffix[1:].lower()
    if form not in FORMATS:
        raise ConfigError(
            f"--plot {path} does not end in .svg, .png or .pdf.{did_you_mean(form, FORMATS)}"
        )
    if not installed():
        raise UsageError(
            f"--plot needs matplotlib, which is missing; get it: {install_hint('plot')}"
        )
    require_ours(path)


# --- a trace, or users -----------------------------------------------------------------------


def _trace(options: argparse.Namespace, asked: _Asked, rest: Sequence[str]) -> Mapping[str, Any]:
    for name in _OF_PATTERNS:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is of patterns; give --pattern too")
    wanted = asked_of(options, rest)
    _refuse_tiers(rest)
    _refuse_inputs(options, wanted.config)
    look = wanted.look()
    seed = look.config.run.seed or SEED
    accesses = gathered(look.plan())
    source = look.load.source.describe()
    if look.found is not None:
        rows = look.found.rows
        source = {**source, "asked_rows": min(look.requests or rows, rows)}
    if not accesses.lookups:
        raise TraceError(
            f"{source_name(source)}: no request asks for a block; give --block-tokens, or a trace "
            "with longer prompts"
        )
    if look.model.kv_quant_group and asked.residencies != [None]:
        raise ConfigError(
            f"--residency: {look.model.name} has scales in its own type; give --kv-dtype float16"
        )
    case = _case(
        source_name(source), [(Seed(seed).child("lab"), accesses)], asked,
        DTYPE_BITS[look.model.dtype], pattern=False,
    )  # fmt: skip
    return lab_document(
        engine=engine_name(), seed=seed, source={"requests": accesses.requests, **source},
        policies=[str(variant) for variant in asked.variants],
        capacities=[each.text for each in asked.capacities],
        residencies=_told(asked, DTYPE_BITS[look.model.dtype]), cases=[case],
        config=to_mapping(look.config),
    )  # fmt: skip


def _refuse_tiers(rest: Sequence[str]) -> None:
    """A cache of the lab is none of the tiers of a run: its options would change nothing."""
    for path in parse(path_in(rest)[1]).overrides:
        if path.split(".")[0] in ("tiers", "policies"):
            flag = known_options()[path].flag or path
            raise ConfigError(
                f"{flag} is of a run's tiers, and lab has none; give --policies, --admission and "
                "--capacities"
            )


def _refuse_inputs(options: argparse.Namespace, config: Config) -> None:
    path = config.trace_path()
    for flag, target in (("--output", options.output), ("--csv", options.csv)):
        if target is not None and path is not None and target.resolve() == path.resolve():
            raise PlaceError(f"{flag} {target} is the trace itself; name another file")


# --- patterns --------------------------------------------------------------------------------


def _patterns(options: argparse.Namespace, asked: _Asked, rest: Sequence[str]) -> Mapping[str, Any]:
    if options.users or options.requests is not None:
        flag = "--users" if options.users else "--requests"
        raise ConfigError(f"--pattern and {flag} are both given; keep one of them")
    seed = _seed(rest)
    names = list(PATTERNS) if options.pattern == ALL else _names(
        options.pattern, list(PATTERNS), "--pattern", "pattern"
    )  # fmt: skip
    shape = _shape(options)
    cases = [_case(name, list(_drawn(name, seed, shape)), asked, _PATTERN_BITS, pattern=True)
             for name in names]  # fmt: skip
    return lab_document(
        engine=engine_name(), seed=seed, source={"patterns": names, **shape},
        policies=[str(variant) for variant in asked.variants],
        capacities=[each.text for each in asked.capacities],
        residencies=_told(asked, _PATTERN_BITS), cases=cases, config=None,
    )  # fmt: skip


def _seed(rest: Sequence[str]) -> int:
    if rest and not rest[0].startswith("-"):
        raise ConfigError(f"{rest[0]} and --pattern are both given; keep one of them")
    overrides = dict(parse(rest).overrides)
    seed = overrides.pop("run.seed", SEED)
    if overrides:
        raise ConfigError(
            f"{next(iter(overrides))} says nothing of a pattern; leave its option out"
        )
    return int(seed)


def _shape(options: argparse.Namespace) -> dict[str, Any]:
    """Numbers of all patterns; None where each has its own. Raises ConfigError."""
    shape = {
        "seeds": SEEDS if options.seeds is None else options.seeds,
        "pages": options.pages,
        "length": options.length,
        "block_kib": BLOCK_KIB if options.block_kib is None else options.block_kib,
        "size_spread": 0.0 if options.size_spread is None else options.size_spread,
    }
    bounds = {
        "seeds": (1, MOST_SEEDS), "pages": (1, MOST_PAGES), "length": (1, MOST_LENGTH),
        "block_kib": (0.001, 1e9), "size_spread": (0, 0.99),
    }  # fmt: skip
    for name, (least, most) in bounds.items():
        value = shape[name]
        if value is not None and not least <= value <= most:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {value}; it must be from {least:g} to {most:g}")
    return shape


def _drawn(name: str, seed: int, shape: Mapping[str, Any]) -> Iterator[tuple[Seed, Accesses]]:
    pattern = PATTERNS[name]
    pages = shape["pages"] or pattern.pages
    if pages < pattern.least:
        raise ConfigError(f"--pages is {pages}; {name} has {pattern.least} or more")
    for number in range(shape["seeds"]):
        own = Seed(seed).child("lab", name, number)
        yield own, drawn(
            pattern, own, pages=pages, length=shape["length"] or pattern.length,
            nbytes=round(shape["block_kib"] * KIB), spread=shape["size_spread"],
        )  # fmt: skip


# --- a case of the document ------------------------------------------------------------------


def _case(
    name: str, some: Sequence[tuple[Seed, Accesses]], asked: _Asked, own_bits: int, *, pattern: bool
) -> dict[str, Any]:
    """Tables of one trace, or of all seeds of a pattern; each residency has its own."""
    tables = []
    for residency in asked.residencies:
        studies = [_studied(accesses, asked, residency, own_bits, seed) for seed, accesses in some]
        tables.append(
            table_of(
                studies, [each.text for each in asked.capacities],
                residency or Residency(name=OWN), seeds=pattern,
            )
        )  # fmt: skip
    sizes = {accesses.size for _, accesses in some}
    base = _mean([each.base for each in studies]) | {"block_bytes": sizes.pop() if len(sizes) == 1
                                                     else None}  # fmt: skip
    return {
        "name": name, "pattern": PATTERNS[name].about if pattern else None, "seeds": len(some),
        "base": base, "tables": [_plain(table) for table in tables],
    }  # fmt: skip


def _studied(
    accesses: Accesses, asked: _Asked, residency: Residency | None, own_bits: int, seed: Seed
) -> Study:
    return study(
        accesses,
        asked.variants,
        [each.room_bytes(accesses) for each in asked.capacities],
        seed=seed,
        stored=None if residency is None else residency.sizes(accesses.sizes, own_bits),
        refusing=asked.refusing,
    )


def _mean(bases: Sequence[Base]) -> dict[str, Any]:
    names = ("lookups", "nbytes", "unique", "requests", "working_set_bytes", "compulsory",
             "prefix_compulsory")  # fmt: skip
    return {name: fmean(getattr(base, name) for base in bases) for name in names}


def _told(asked: _Asked, own_bits: int) -> list[dict[str, Any]]:
    return [
        {"name": OWN, "ratio": 1.0, "group": 0, "cost_ns": None, "cost_source": None}
        if each is None
        else {
            "name": each.name, "ratio": _ratio(each, own_bits),
            "group": each.group if BITS[each.name] <= SCALED_BITS else 0,
            "cost_ns": each.cost_ns,
            "cost_source": None if each.cost_ns is None else asked.cost_source,
        }
        for each in asked.residencies
    ]  # fmt: skip


def _ratio(residency: Residency, own_bits: int) -> float:
    """Of stored to logical bytes, without scales."""
    return BITS[residency.name] / own_bits


def _plain(value: Any) -> Any:
    """Dataclasses and intervals as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


# --- writing ---------------------------------------------------------------------------------


def _write(options: argparse.Namespace, document: Mapping[str, Any]) -> bool:
    """Whether every file is where it was to be."""
    written: dict[str, Path | str] = {}
    kept: dict[str, Kept] = {}
    if options.plot is not None:
        form = options.plot.suffix[1:].lower()
        data = draw(document, options.plot, form)
        write_picture(options.plot, data)
        written["plot"] = options.plot
    for name, path, made in (
        ("lab", options.output, as_json), ("csv", options.csv, lab_csv),
    ):  # fmt: skip
        if path is not None:
            kept[name] = keep(path, made(document), f"file of {name}")
            if name == "lab" or kept[name].path is not None:
                written[name] = kept[name].shown
    whole = all(each.in_place for each in kept.values())
    if options.json:
        sys.stdout.write(as_json(document).decode())
        return whole
    print(terminal(made_view(document)))
    if written:
        print()
    for name, path in written.items():
        print(f"{name:<10}{path}")
    if "lab" in kept:
        print_unwritten(kept["lab"])
    return whole
