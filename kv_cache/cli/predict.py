"""`kv-cache.py predict … --profile FILE`: what a run would measure, in virtual time."""

from collections.abc import Sequence

from kv_cache.app.predict import configured, predict, prediction
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.beginning import begin, dry_run
from kv_cache.cli.command import Command, OfRun
from kv_cache.cli.printing import print_json, print_plain, print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.view.prediction import prediction_table
from kv_cache.view.terminal import table_lines

COMMAND = Command(
    name="predict",
    options=OfRun,
    of_run=True,
    about="""\
    Simulate the very load that run with these options would serve, on the machine of a profile
    that calibrate (or probe) wrote, and print what the run would measure: storage bandwidth, hit
    ratios, requests/s, percentiles of loads and stores by tier; with --json as one document.
    --output FILE keeps it as a result.

    Objects of sizes that were not measured are refused; --extrapolate continues all the same and
    marks every number that it touches. run --predict FILE does this before a real run, and
    publishes the error of the one against the other.
    """,
    epilog="""\
    examples:
      kv-cache.py calibrate --cache-dir /mnt/nvme/kv --output machine.yaml
      kv-cache.py predict --profile machine.yaml --semantics serving --num-users 50 --duration 300
      kv-cache.py run --predict machine.yaml --cache-dir /mnt/nvme/kv --semantics serving

    exit code: 0 done, 1 could not be written, 2 bad input, 130 and 143 interrupted
    """,
)


def main(argv: Sequence[str]) -> int:
    """Predict; the exit code. UsageError is the caller's to print."""
    _, invocation = COMMAND.parse_with_run(argv)
    notes = begin(invocation)
    config = configured(invocation)
    if invocation.dry_run:
        return dry_run(config, notes)
    with interrupts() as caught:
        progress = TerminalProgress(config.output.progress)
        result = predict(config, notes=notes, stop=caught, progress=progress)
    if result is None:
        print("interrupted; nothing is predicted")
        return caught.exit_code
    twin = prediction(result)
    if config.output.json:  # the whole of what is predicted
        print_json(twin)
    else:
        schedule = result.section["schedule"]["sha256"]
        name, seed = result.section["model"]["name"], result.section["seed"]
        print_plain(f"{name}, seed {seed}, schedule {schedule[:12]}")
        print_plain("\n".join(table_lines(prediction_table(twin, every=True))))
        assert result.kept is not None
        print_plain(f"result  {result.kept.shown}")
        print_unwritten(result.kept)
    return result.end
