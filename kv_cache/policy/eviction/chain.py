"""A doubly linked list whose links are what it holds: out of one and into another is O(1), and
looks nothing up. Where that happens at every access the two are written out, since a call would
cost more than they do."""


class ChainLink:
    """`before` and `after` are there while it stands in a chain."""

    __slots__ = ("after", "before")
    __deletable__ = ("after", "before")  # as mypyc wants to be told
    after: "ChainLink"
    before: "ChainLink"


class Chain(ChainLink):
    """Both ends: what comes after it is the first, and what is before it the last."""

    __slots__ = ()

    def __init__(self) -> None:
        self.after = self.before = self

    @property
    def empty(self) -> bool:
        return self.after is self


def append(link: ChainLink, chain: Chain) -> None:
    last = chain.before
    link.before, link.after = last, chain
    last.after = chain.before = link


def take(link: ChainLink) -> None:
    before, after = link.before, link.after
    before.after = after
    after.before = before


def release(link: ChainLink) -> None:
    """`take` what does not come back: it holds on to nothing."""
    take(link)
    del link.before, link.after
