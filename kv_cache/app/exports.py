"""What a run tells beside its result: files that are written once it is there, and metrics while
it goes on. `app.prepare` checks their places before it begins."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kv_cache import __version__
from kv_cache.bench.run import RealRun
from kv_cache.config.build import class_slos
from kv_cache.config.root import Config
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import Phase
from kv_cache.metrics.exposition import about, exposition, kept, measured, planned, speaking_against
from kv_cache.view.sheets import target_of

if TYPE_CHECKING:
    from kv_cache.bench.endpoint import Endpoint

log = logging.getLogger("kv_cache")


def write_exports(config: Config, document: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """What was written, by what it is; and whether all was that was asked for and has content."""
    wanted = config.output.xlsx_output
    if wanted is None:
        return {}, True
    if "summary" not in document:
        log.warning("no request completed, so there is no summary to write to %s", wanted)
        return {}, True
    target = target_of(Path(wanted))
    try:
        target.write(document)
    except (OSError, UsageError) as error:
        log.error("the summary could not be written to %s: %s", target.path, error)
        return {}, False
    return {"sheets": str(target.path)}, True


# --- metrics while a run goes on ---------------------------------------------------------------


def endpoint(config: Config) -> "AbstractContextManager[Endpoint | None]":
    """Listens as long as the context lasts, if that was asked for. Raises PlaceError."""
    port = config.output.metrics_port
    if port is None:
        return nullcontext()
    from kv_cache.bench.endpoint import Endpoint  # it brings a web server

    info = _info(config)
    return Endpoint(config.output.metrics_host, port, lambda: exposition(about(info, "starting")))


def watch(config: Config, served: "Endpoint | None", run: RealRun) -> None:
    """From now on the run's numbers are told."""
    if served is None:
        return
    slos = class_slos(config)
    lengths = {Phase.WARMUP: config.run.warmup_s, Phase.MEASURE: config.window_s()}
    fixed = planned(lengths, slos)
    info = _info(config)

    def tells() -> str:
        numbers = measured(run.recorder, run.totals, run.latest)
        now = about(info, run.phase)
        text = exposition([*now, *fixed, kept(run.recorder, slos), *numbers])
        return text + speaking_against(run.reasons_so_far())

    served.render = tells


def _info(config: Config) -> dict[str, str]:
    run = config.run
    return {
        "version": __version__,
        "model": ",".join(run.model_mix) or run.model,
        "semantics": config.semantics.preset,
        "seed": str(run.seed),
    }
