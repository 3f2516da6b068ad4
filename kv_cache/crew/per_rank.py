"""Per-rank paths, seeds and ports, derived from the options that all ranks share.

Launchers start the same command line on every rank. Each then has directories, files and a seed of
its own, determined by the rank alone: no rank overwrites the files of another.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_cache.config.root import Config, say
from kv_cache.config.sections import FILES_BESIDE, OutputConfig
from kv_cache.core.errors import ConfigError
from kv_cache.core.mpirank import MpiRank
from kv_cache.files.environment import Reader, filesystem
from kv_cache.tiers.objects import below, is_object_url

SEEDS = 2**32
LAST_PORT = 65_535
LOCAL_FILESYSTEMS = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "zfs", "vfat"),
        *("exfat", "tmpfs", "ramfs", "overlay"),
    )
)
"""What only this machine writes to. Any other may be every machine's."""


def own_file(path: Path, rank: MpiRank, *, together: bool = False) -> Path:
    """Return the file of one rank: `R.rank2.json` for rank 2, `R.json` itself for rank 0. If ranks
    run together `R.json` is the result of all, and rank 0 has `R.rank0.json`."""
    if rank.rank == 0 and not together:
        return path
    return path.with_name(f"{path.stem}.rank{rank.rank}{path.suffix}")


def config_of_rank(
    config: Config, rank: MpiRank, output: Path, *, together: bool = False
) -> Config:
    """Return the configuration of one rank: directories below the shared ones, files beside the
    shared ones, the seed plus the rank, and its share of the free space. `output` is its result, if
    that is not in a directory of results."""
    shared, tiers = config.output, config.tiers
    if tiers.erase_device is not None:
        raise ConfigError(
            f"{say(config, 'tiers.erase_device')}, and this is {rank} of a job: one process alone "
            "can claim a device; start one, or give the ranks a file system with --cache-dir"
        )
    files: dict[str, Any] = {
        name: str(own_file(Path(shared_name), rank, together=together))
        for name in FILES_BESIDE
        if (shared_name := getattr(shared, name)) is not None
    }
    results = None if shared.results_dir is None else str(Path(shared.results_dir) / rank.directory)
    inside = (
        shared.output is None and results is not None
    )  # the record of the rank holds its result
    directories = tiers.cache_dir
    if directories is not None:
        directories = tuple(below(name, rank.directory) for name in directories)
    seed = config.run.seed
    return replace(
        config,
        run=replace(config.run, seed=None if seed is None else (seed + rank.rank) % SEEDS),
        tiers=replace(
            tiers,
            cache_dir=directories,
            free_share=tiers.free_share / _sharers(rank, tiers.cache_dir),
        ),
        output=replace(
            shared,
            output=None if inside else str(output),
            results_dir=results,
            metrics_port=_port(shared, rank),
            **files,
        ),
    )


def _port(output: OutputConfig, rank: MpiRank) -> int | None:
    """Return the port of one rank: the shared one plus the rank; 0 is any free port. Raises
    ConfigError if there is no such port."""
    port = output.metrics_port + rank.rank if output.metrics_port else output.metrics_port
    if port is not None and port > LAST_PORT:
        raise ConfigError(
            f"output.metrics_port (--metrics-port) is {output.metrics_port}, and {rank} would "
            f"listen on {port}, which is not a port; name a lower one, or 0 for any that is free"
        )
    return port


def _sharers(rank: MpiRank, directories: tuple[str, ...] | None) -> int:
    """Return how many ranks write to the file systems of these directories, this one included; 1 if
    the starter does not say."""
    all_ranks = rank.ranks or 1
    local = all(
        filesystem(Reader(), Path(name))["type"] in LOCAL_FILESYSTEMS
        for name in directories or ()
        if not is_object_url(name)  # has no free space to share
    )
    return (rank.on_machine or all_ranks) if local else all_ranks


def alone_note(rank: MpiRank) -> tuple[str, ...]:
    """Return what a reader of one rank's result has to know."""
    if rank.alone:
        return ()
    note = f"this is {rank} ({rank.source}) alone: nothing here is a sum over ranks"
    return (f"{note}, and the others' results have files of their own",)


def together_note(rank: MpiRank, output: Path) -> tuple[str, ...]:
    """Return the same if the ranks run together, with the result of all at `output`."""
    note = f"this is {rank} alone, which ran together with the others"
    return (f"{note}: the sums over ranks are in {output}",)
