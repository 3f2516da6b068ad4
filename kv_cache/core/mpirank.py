"""Which of several processes of one job this one is. MLPerf calls it a client: one MPI rank."""

from msgspec import Struct


class MpiRank(Struct, frozen=True, kw_only=True):
    """A rank, counted from 0. What the starter did not tell is None."""

    rank: int = 0
    ranks: int | None = 1  # of the whole job
    on_machine: int | None = 1  # of them on this machine
    source: str | None = None  # the environment variable that has the rank

    @property
    def alone(self) -> bool:
        """Whether there is no other rank for sure."""
        return self.ranks == 1

    @property
    def directory(self) -> str:
        """The name of what belongs to this rank below a directory that all were given; it is the
        MLPerf launcher's."""
        return f"rank_{self.rank}"

    def __str__(self) -> str:
        return f"rank {self.rank} of {'an unknown number' if self.ranks is None else self.ranks}"


ALONE = MpiRank()
"""A process that was not started as one of several."""
