"""`kv-cache.py sim SCENARIO`: a simulated cluster, each variant with each seed in turn.

Everything runs in virtual time and in this process. What a run found is told when it has ended; a
signal ends the run that goes on, and what had ended before is written.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from kv_cache.app.compiled import PURE, engine_name
from kv_cache.bench.cache_dir import check_output_file
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.parsing import CommandParser
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.sim_run import Found, NothingEndedError, Streams, run_all
from kv_cache.config.scenario import Scenario
from kv_cache.config.scenarios import (
    PRESETS,
    Scenarios,
    print_scenario,
    read_scenarios,
    scenario_names,
)
from kv_cache.config.schema import to_mapping
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, did_you_mean
from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.files.cluster_events import LINES
from kv_cache.files.cluster_tables import RUNS_MARK, runs_csv
from kv_cache.files.keep import Kept, keep
from kv_cache.files.reading import require_replaceable
from kv_cache.files.records import require_own_name
from kv_cache.installing import install_hint
from kv_cache.result.simulation.document import sim_document
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

_ABOUT = """\
Simulate a cluster that serves requests: instances with HBM, tiers below it, a router, a network.
Virtual time: nothing is measured, and no byte is moved.

SCENARIO is a file, or the name of a shipped scenario. A scenario says what is asked, of how many
instances in which nodes and racks, where KV state may live, and what is compared: its variants run
one after the other, each with each seed.
"""

_EXAMPLES = """\
examples:
  kv-cache.py sim --list
  kv-cache.py sim --print
  kv-cache.py sim single-node --preset smoke
  kv-cache.py sim single-node --seeds 5 --html policies.html
  kv-cache.py sim mine.yaml --set tiers.dram.capacity_gib=512 --set workload.rate_per_s=40
  kv-cache.py sim b13 --output b13.json --events b13.jsonl --series b13.csv
Later, of --output: kv-cache.py report FILE, plot FILE, verify FILE.

What a verdict needs: 3 seeds or more, intervals that do not overlap, instances that have work.
Every option of a scenario, and each number: docs/reference/sim.md

exit code: 0 all runs ended, 1 a law of the simulation was broken or a file is not where it was to
be, 2 bad input, 130 and 143 interrupted (the runs that ended are written)
"""


def main(argv: Sequence[str]) -> int:
    """The exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(list(argv))
    if options.list:
        print("\n".join(_listed()))
        return 0
    if options.print:
        print(_printed(options), end="")
        return 0
    study = _read(options)
    _check_places(options, study)
    streams = Streams(events=options.events, series=options.series, instances=options.per_instance)
    with interrupts() as caught:
        try:
            found = run_all(study, streams, caught)
        except NothingEndedError:
            print("kv-cache: interrupted before any run had ended; nothing is written",
                  file=sys.stderr)  # fmt: skip
            return caught.exit_code
        document = _document(study, found, ["sim", *argv], caught.name)
        written = _write(options, study, found, document)
        return caught.exit_code or (Exit.DONE if written else Exit.EARLY)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py sim",
        usage="%(prog)s SCENARIO [option ...] | --list | --print",
        description=f"{_ABOUT}\nshipped scenarios: {', '.join(scenario_names())} (see --list)",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("scenario", nargs="?", type=Path, metavar="SCENARIO", help="a file, or a shipped one")
    add("--list", action="store_true", help="the shipped scenarios and what they ask")
    add(
        "--print",
        action="store_true",
        help="every option of SCENARIO (or of none: the defaults) "
        "with its unit and bounds, as a scenario that loads; nothing runs",
    )
    add("--preset", metavar="NAME", help=f"the same question at a scale: {', '.join(PRESETS)}")
    add(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        dest="sets",
        help="an option of the scenario, such as workload.requests=500; may stand several times",
    )
    add(
        "--seeds",
        type=int,
        metavar="N",
        help="how often each variant runs, each time with other "
        "draws [default: as the scenario says, or 1]",
    )
    add("-o", "--output", type=Path, metavar="FILE", help="write the result there, as JSON")
    add("--csv", type=Path, metavar="FILE", help="a row for each run, with every number")
    add("--events", type=Path, metavar="FILE", help="the event log, as JSON lines")
    add("--series", type=Path, metavar="FILE", help="the time series of each run, as CSV")
    add("--per-instance", type=Path, metavar="FILE", help="a row for each instance of each run")
    add(PURE, action="store_true", help="do not use the compiled engine (see compile)")
    add("--html", type=Path, metavar="FILE", help="a page for a browser, which needs no network")
    add("--plot", type=Path, metavar="FILE", help="a picture: FILE.svg, .png or .pdf")
    add("--json", action="store_true", help="print the result, in place of its summary")
    return parser  # fmt: skip


def _listed() -> Iterator[str]:
    """Each shipped scenario with its question, its scales and how many runs it is."""
    for name in scenario_names():
        study = read_scenarios(Path(name))
        yield f"{name:<22}{study.base.question}"
        yield f"{'':<22}runs {_counted(study.size)}{_presets(name)}"


def _presets(name: str) -> str:
    found = []
    for preset in PRESETS:
        try:
            found.append(f"{preset} {_counted(read_scenarios(Path(name), preset).size)}")
        except ConfigError:  # it has none of that name
            continue
    return f"; with --preset: {', '.join(found)}" if found else ""


def _printed(options: argparse.Namespace) -> str:
    """Without what varies. Raises ConfigError."""
    return print_scenario(Scenario() if options.scenario is None else _read(options).base)


def _counted(size: int) -> str:
    return f"{size:,}"


# --- before anything runs --------------------------------------------------------------------


def _read(options: argparse.Namespace) -> Scenarios:
    """Raises ConfigError."""
    if options.scenario is None:
        raise ConfigError(
            f"sim: no scenario is given; name a file, or one of {', '.join(scenario_names())}"
        )
    sets = list(options.sets)
    if options.seeds is not None:
        if any(text.partition("=")[0] == "seeds" for text in sets):
            raise ConfigError("--seeds and --set seeds= are both given; keep one of them")
        if options.seeds < 1:
            raise ConfigError(f"--seeds {options.seeds}: each variant runs once or more")
        sets.append(f"seeds={options.seeds}")
    study = read_scenarios(options.scenario, options.preset, sets)
    study.check()
    return study


_FLAGS = ("output", "csv", "events", "series", "per_instance", "html", "plot")


def _check_places(options: argparse.Namespace, study: Scenarios) -> None:
    """Raises UsageError for what could not be written. Creates nothing."""
    places = {
        f"--{name.replace('_', '-')}": path
        for name in _FLAGS
        if (path := getattr(options, name)) is not None
    }
    _each_its_own(places, study)
    for flag, path in places.items():
        _CHECKS[flag](path, flag)


def _each_its_own(places: Mapping[str, Path], study: Scenarios) -> None:
    seen = {Path(study.source).resolve(): "the scenario"}
    for flag, path in places.items():
        other = seen.setdefault(path.resolve(), flag)
        if other != flag:
            raise PlaceError(f"{flag} {path} is also {other}'s file; name another one")


def _check_output(path: Path, flag: str) -> None:
    check_output_file(path, "kv-cache-sim/")


def _check_table(path: Path, flag: str) -> None:
    require_replaceable(path, RUNS_MARK, flag)


def _check_events(path: Path, flag: str) -> None:
    require_own_name(path, flag, lambda first: first.startswith(LINES))


def _check_page(path: Path, flag: str) -> None:
    from kv_cache.view.page import MARK  # long to import, and seldom wanted

    require_replaceable(path, MARK, flag)


def _check_picture(path: Path, flag: str) -> None:
    from kv_cache.view.picture.plot import FORMATS, installed, require_ours

    form = path.suffix[1:].lower()
    if form not in FORMATS:
        raise ConfigError(
            f"{flag} {path} does not end in .svg, .png or .pdf.{did_you_mean(form, FORMATS)}"
        )
    if not installed():
        raise UsageError(
            f"{flag} needs matplotlib, which is missing; get it: {install_hint('plot')}"
        )
    require_ours(path)


_CHECKS: Mapping[str, Callable[[Path, str], None]] = {
    "--output": _check_output,
    "--csv": _check_table,
    "--events": _check_events,
    "--series": _check_table,
    "--per-instance": _check_table,
    "--html": _check_page,
    "--plot": _check_picture,
}


# --- what was found --------------------------------------------------------------------------


def _document(
    study: Scenarios, found: Found, argv: Sequence[str], interrupted: str | None
) -> Mapping[str, Any]:
    return sim_document(
        source=study.source, argv=argv, scenario=to_mapping(study.base), varied=study.paths,
        seeds=found.seeds, planned=study.size, variants=found.variants,
        traces=found.traces, left_out=study.left_out,
        interrupted=interrupted if found.ended < study.size else None,
        preset=study.preset or None, engine=engine_name(),
    )  # fmt: skip


def _write(
    options: argparse.Namespace, study: Scenarios, found: Found, document: Mapping[str, Any]
) -> bool:
    """Whether every file is where it was to be. Raises PlaceError."""
    kept: dict[str, Kept] = {}
    for name, made in (("output", as_json), ("csv", runs_csv), ("html", _page)):
        path = getattr(options, name)
        if path is not None:
            kept[name] = keep(path, made(document), f"file of --{name}")
    if options.plot is not None:
        from kv_cache.view.picture.plot import draw, write_picture

        read = orjson.loads(as_json(document))  # as it is read back
        form = options.plot.suffix[1:].lower()
        write_picture(options.plot, draw(read, Path(study.source), form))
    if options.json:
        sys.stdout.write(as_json(document).decode())
        return all(each.in_place for each in kept.values())
    print(terminal(made_view(document)))
    print("\n".join(_last_lines(options, found, kept)))
    if "output" in kept:
        print_unwritten(kept["output"])
    return all(each.in_place for each in kept.values())


def _page(document: Mapping[str, Any]) -> bytes:
    from kv_cache.view.page import page

    read = orjson.loads(as_json(document))
    return page([read], [read["kv_cache"]["name"]]).encode()


def _last_lines(
    options: argparse.Namespace, found: Found, kept: Mapping[str, Kept]
) -> Iterator[str]:
    """How long it took, and what was written where."""
    speed = found.events / found.took_s if found.took_s else 0.0
    engine = engine_name()
    if engine == "python":
        engine += "; see kv-cache.py compile"
    rate = f"{found.events:,} events, {speed:,.0f} a second"
    yield f"\ntook      {found.took_s:.1f} s: {rate} ({engine})"
    for name in _FLAGS:
        path = getattr(options, name)
        if path is not None and (name not in kept or kept[name].path or name == "output"):
            where = kept[name].shown if name in kept else path
            yield f"{name.replace('_', '-'):<14}{where}"
