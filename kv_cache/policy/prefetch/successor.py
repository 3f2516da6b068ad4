"""First-order transitions, learned as requests come (Markov prefetching: Joseph and Grunwald,
"Prefetching using Markov predictors", ISCA 1997; with counts and a least confidence as the
`predictive` policy of manishklach/kv-hierarchy-lab).

What follows what is learned twice: of conversations, whose sequences grow, and of whole sequences,
which a key names by itself (the key of the last block depends on all before it). The answer are the
first blocks of what has followed at least `confidence` times, the most frequent first. Each
remembers its `SUCCESSORS` most frequent successors and the first `most` keys of its latest request;
what was not asked for the longest is forgotten first. O(keys) a call, and O(most)."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from kv_cache.core.block import Key
from kv_cache.policy.prefetch.base import Prefetch, PrefetchRules

SUCCESSORS = 8


class _Node:
    __slots__ = ("followed_by", "keys")

    def __init__(self) -> None:
        self.keys: tuple[Key, ...] = ()
        self.followed_by: dict[Hashable, int] = {}

    def count(self, successor: Hashable) -> None:
        """A new successor takes the place, not the count, of the rarest one."""
        if successor not in self.followed_by and len(self.followed_by) == SUCCESSORS:
            rarest = min(self.followed_by, key=self.followed_by.__getitem__)
            del self.followed_by[rarest]
        self.followed_by[successor] = self.followed_by.get(successor, 0) + 1


class _Chain:
    """Transitions between names of one kind."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._nodes: OrderedDict[Hashable, _Node] = OrderedDict()
        self._last: Hashable | None = None

    def step(self, name: Hashable, keys: tuple[Key, ...]) -> None:
        before = self._nodes.get(self._last)
        if before is not None and name != self._last:
            before.count(name)
        node = self._nodes.setdefault(name, _Node())
        node.keys = keys
        self._nodes.move_to_end(name)
        self._last = name
        if len(self._nodes) > self._memory:
            self._nodes.popitem(last=False)

    def next(self, confidence: int) -> Iterator[tuple[int, tuple[Key, ...]]]:
        """Return what has followed the last name so often, and its keys."""
        for name, count in self._nodes[self._last].followed_by.items():
            successor = self._nodes.get(name)
            if count >= confidence and successor is not None:
                yield count, successor.keys

    def __len__(self) -> int:
        return len(self._nodes)


class Successor(Prefetch):
    def __init__(self, rules: PrefetchRules) -> None:
        self._rules = rules
        self.conversations = _Chain(rules.memory)
        self.sequences = _Chain(rules.memory)

    def wanted_after(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
        if not keys:
            return ()
        first = tuple(keys[: self._rules.most])
        self.conversations.step(conversation, first)
        self.sequences.step(keys[-1], first)
        followers = [*self.conversations.next(self._rules.confidence)]
        followers += self.sequences.next(self._rules.confidence)
        followers.sort(key=lambda each: -each[0])
        wanted = dict.fromkeys(key for _, several in followers for key in several)
        return tuple(wanted)[: self._rules.most]
