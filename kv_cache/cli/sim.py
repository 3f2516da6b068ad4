"""`kv-cache.py sim SCENARIO`: a simulated cluster, each variant with each seed."""

import sys
from collections.abc import Sequence

from kv_cache.app.sim import SimOptions, SimResult, listed, planned_sim, scenario_text, sim
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_json, print_study
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.scenarios import scenario_names
from kv_cache.core.exits import Exit
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="sim",
    options=SimOptions,
    about=f"""\
    Simulate a cluster that serves requests: instances with HBM, tiers below it, a router, a
    network. Virtual time: nothing is measured, and no byte is moved.

    A scenario says what is asked, of how many instances in which nodes and racks, where KV state
    may live, and what is compared: its variants run on all cores, each with each seed.

    shipped scenarios: {", ".join(scenario_names())} (see --list)
    """,
    epilog="""\
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

    exit code: 0 all runs ended, 1 a law of the simulation was broken or a file is not where it was
    to be, 2 bad input, 130 and 143 interrupted (the runs that ended are written)
    """,
)


def main(argv: Sequence[str]) -> int:
    """Simulate; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    if options.list_all:
        print("\n".join(listed()))
        return Exit.DONE
    if options.show:
        print(scenario_text(options), end="")
        return Exit.DONE
    if options.dry_run:
        print(terminal(planned_sim(options)))
        return Exit.DONE
    with interrupts() as caught:
        result = sim(options, argv=["sim", *argv], stop=caught, progress=TerminalProgress())
        if result is None:
            print("kv-cache: interrupted before any run had ended; nothing is written",
                  file=sys.stderr)  # fmt: skip
            return caught.exit_code
        if options.json:
            print_json(result.document)
        else:
            print_study(result, _cost(result))
        return result.end


def _cost(result: SimResult) -> str:
    """Return the line that says how long it took."""
    speed = result.events / result.took_s if result.took_s else 0.0
    engine = result.section["engine"]
    if engine == "python":
        engine += "; see kv-cache.py compile"
    rate = f"{result.events:,} events, {speed:,.0f} a second"
    return f"took      {result.took_s:.1f} s: {rate} ({engine})"
