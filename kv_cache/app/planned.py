"""What a checked run would do, without doing it (`--dry-run`)."""

from pathlib import Path

from kv_cache.app.prepare import Job
from kv_cache.bench.cache_dir import obtainable_bytes
from kv_cache.config.sections import FILES_BESIDE
from kv_cache.config.unread import value_at
from kv_cache.core.units import MISSING, human_bytes
from kv_cache.view.parts import View
from kv_cache.view.planned import planned


def planned_view(job: Job, *, then: str = "") -> View:
    """Show a job that was checked. `then` says what else the command would do."""
    config = job.config
    window_s = config.window_s()
    seconds = "no limit of time" if window_s is None else f"{window_s:g} s"
    what = "in virtual time" if config.run.virtual_time else "with real I/O"
    rows = [*_load(job), *_tiers(job), *_files(job)]
    return planned(rows, scale=f"{seconds} {what}{then}", warnings=job.warnings)


def _load(job: Job) -> list[tuple[str, str]]:
    config, run = job.config, job.config.run
    trace = config.trace_path()
    source = f"{run.num_users} users" if trace is None else f"trace {trace}"
    trials = f", {run.trials} trials" if run.trials > 1 else ""
    warmup = f"{run.warmup_s:g} s of warm-up before, {run.drain_s:g} s of drain after"
    return [
        ("model", job.model.name),
        ("load", f"{source}, {config.semantics.preset} semantics, seed {job.seed}{trials}"),
        ("time", warmup),
    ]


def _tiers(job: Job) -> list[tuple[str, str]]:
    rows = [
        (
            f"tier {spec.tier.label}",
            "without a limit" if spec.capacity_bytes is None else human_bytes(spec.capacity_bytes),
        )
        for spec in job.specs
    ]
    for place in job.directories:
        free = MISSING
        if isinstance(place, Path) and not job.config.run.virtual_time:
            free = f"{human_bytes(obtainable_bytes(place))} free"
        rows.append((f"directory {place}", free))
    return rows


def _files(job: Job) -> list[tuple[str, str]]:
    rows = [("result", str(job.output))]
    if job.run_directory is not None:
        rows.append(("record of the run", str(job.run_directory)))
    for name in FILES_BESIDE:
        if (path := value_at(job.config, f"output.{name}")) is not None:
            rows.append((name.replace("_", " "), str(path)))
    return rows
