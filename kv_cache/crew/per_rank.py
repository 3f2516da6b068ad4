"""Per-rank paths, seeds and ports, derived from the options that all ranks share.

Launchers start the same command line on every rank. Each then has directories, files and a seed of
its own, by the rank alone and without asking the others: nobody overwrites anybody, whoever ends
first.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_cache.config.root import Config
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
    """Rank 0 has the name that was given, so that whoever gave it finds a result there; `R.json` of
    rank 2 is `R.rank2.json`. Where ranks run together `R.json` is all ranks', and none is rank 0's.
    """
    if rank.rank == 0 and not together:
        return path
    return path.with_name(f"{path.stem}.rank{rank.rank}{path.suffix}")


def apart(config: Config, rank: MpiRank, output: Path, *, together: bool = False) -> Config:
    """What all ranks were given, made this rank's: directories below those that were given, files
    beside them, the seed plus the rank, and its share of free space. `output` is its own result,
    if that has no place in a directory of results.
    """
    section, tiers = config.output, config.tiers
    files: dict[str, Any] = {
        name: str(own_file(Path(given), rank, together=together))
        for name in FILES_BESIDE
        if (given := getattr(section, name)) is not None
    }
    results = (
        None if section.results_dir is None else str(Path(section.results_dir) / rank.directory)
    )
    inside = (
        section.output is None and results is not None
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
            section,
            output=None if inside else str(output),
            results_dir=results,
            metrics_port=_port(section, rank),
            **files,
        ),
    )


def _port(told: OutputConfig, rank: MpiRank) -> int | None:
    """Ranks on one machine listen on ports one after the other; 0 is any that is free. Raises
    ConfigError where there is none for this rank."""
    port = told.metrics_port + rank.rank if told.metrics_port else told.metrics_port
    if port is not None and port > LAST_PORT:
        raise ConfigError(
            f"output.metrics_port (--metrics-port) is {told.metrics_port}, and {rank} would listen "
            f"on {port}, which is no port; name a lower one, or 0 for any that is free"
        )
    return port


def _sharers(rank: MpiRank, directories: tuple[str, ...] | None) -> int:
    """How many ranks write to the file systems of these directories, this one included; where the
    starter does not say, this one."""
    everybody = rank.ranks or 1
    local = all(
        filesystem(Reader(), Path(name))["type"] in LOCAL_FILESYSTEMS
        for name in directories or ()
        if not is_object_url(name)  # of which nobody takes a share
    )
    return (rank.on_machine or everybody) if local else everybody


def alone_note(rank: MpiRank) -> tuple[str, ...]:
    """What whoever reads one rank's result has to know."""
    if rank.alone:
        return ()
    note = f"this is {rank} ({rank.told_by}) alone: nothing here is a sum over ranks"
    return (f"{note}, and the others' results have files of their own",)


def together_note(rank: MpiRank, output: Path) -> tuple[str, ...]:
    """The same, where the ranks run together, with the result of all at `output`."""
    note = f"this is {rank} alone, which ran together with the others"
    return (f"{note}: the sums over ranks are in {output}",)
