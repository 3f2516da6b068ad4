"""`kv-cache.py compile`: the engine of sim and lab as machine code, up to four times as fast."""

import sys
from collections.abc import Sequence

from kv_cache.app.compile_engine import CompileOptions, compile_engine, remove_engines
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.command import Command
from kv_cache.core.exits import Exit

COMMAND = Command(
    name="compile",
    options=CompileOptions,
    about="The engine of sim and lab as machine code, up to four times as fast.",
    epilog="""\
    examples:
      kv-cache.py compile            once after each update; takes about a minute
      kv-cache.py sim cluster-10k    uses it
      kv-cache.py compile --remove   deletes what was compiled, of all versions
    """,
)


def main(argv: Sequence[str]) -> int:
    """Compile, or remove; the exit code. UsageError is the caller's to print."""
    if COMMAND.parse(argv).remove:
        return _remove()
    with interrupts() as caught:
        engine = compile_engine(caught)
    if engine is None:
        print(f"kv-cache: compile: {caught.name}: nothing was kept", file=sys.stderr)
        return caught.exit_code
    if engine.seconds is None:
        print(f"compiled already: {engine.folder}")
    else:
        print(f"compiled  {engine.folder}\ntook      {engine.seconds:.0f} s")
    return Exit.DONE


def _remove() -> int:
    folders = remove_engines()
    for folder in folders:
        print(f"removed   {folder}")
    if not folders:
        print("nothing was compiled")
    return Exit.DONE
