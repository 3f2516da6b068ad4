"""What prompts are made of: chains of runs of blocks, each run named once.

A node is a run of consecutive blocks behind its parent's. Its name represents its content and all
before it (the parent-chained block hash of serving engines, one for a whole run), so equal prefixes
are equal nodes. A sequence is the last node of a chain. Blocks are whole: one that lies across the
border of two runs belongs to the second, for its content depends on both; so a run may be empty
and still name what follows.
"""

from array import array

ROOT = 0


class PrefixChain:
    """Nodes are numbers from 0, the root, which is empty and before everything."""

    __slots__ = ("_names", "blocks", "depth", "parent")

    def __init__(self) -> None:
        self.parent = array("q", [-1])
        self.blocks = array("q", [0])  # of the run itself
        self.depth = array("q", [0])  # blocks before it
        self._names: dict[tuple[int, object], int] = {}

    def fresh(self, parent: int, blocks: int) -> int:
        """Add a run whose content is unique."""
        self.parent.append(parent)
        self.blocks.append(blocks)
        self.depth.append(self.depth[parent] + self.blocks[parent])
        return len(self.parent) - 1

    def named(self, parent: int, name: object, blocks: int) -> int:
        """Return the run of that content behind `parent`: the same for the same name."""
        node = self._names.get((parent, name))
        if node is None:
            node = self._names[parent, name] = self.fresh(parent, blocks)
        assert self.blocks[node] == blocks, "one content has two lengths"
        return node

    def grown(self, node: int, blocks: int) -> int:
        """Add a fresh run behind `node`, up to `blocks` of the whole sequence."""
        return self.fresh(node, blocks - self.end(node))

    def grown_by(self, node: int, name: object, blocks: int) -> int:
        """Return the run of that content behind `node`, up to `blocks` of the whole sequence."""
        return self.named(node, name, blocks - self.end(node))

    def end(self, node: int) -> int:
        """Return blocks of the whole sequence that ends with `node`."""
        return self.depth[node] + self.blocks[node]

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes of a sequence that hold blocks, the first first."""
        parent, blocks = self.parent, self.blocks
        nodes = []
        while node > ROOT:
            if blocks[node]:
                nodes.append(node)
            node = parent[node]
        nodes.reverse()
        return tuple(nodes)
