"""What a block holds, as a tree. A leaf is what one rank gives. A node is two trees, combined in their order."""

from __future__ import annotations


class Symbols:
    """Expression trees, each with a number. Numbers below ``leaves`` are leaves. Equal trees have the same number."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._known: dict[tuple[int, int], int] = {}
        self._parts: list[tuple[int, int]] = []
        self._ranks: list[int] = []
        self._depth: list[int] = []

    def combined(self, a: int, b: int) -> int:
        """The tree of ``a op b``. Raises ValueError if that counts a rank twice."""
        found = self._known.get((a, b))
        if found is not None:
            return found
        of_a, of_b = self.ranks(a), self.ranks(b)
        if of_a & of_b:
            raise ValueError(f"counts rank {lowest(of_a & of_b)} twice")
        self._parts.append((a, b))
        self._ranks.append(of_a | of_b)
        self._depth.append(1 + max(self.depth(a), self.depth(b)))
        found = self._known[a, b] = self.leaves + len(self._parts) - 1
        return found

    def parts(self, symbol: int) -> tuple[int, int] | None:
        """The two trees that were combined, in their order, or None for a leaf."""
        return None if symbol < self.leaves else self._parts[symbol - self.leaves]

    def ranks(self, symbol: int) -> int:
        """The ranks whose contributions the tree holds, as the bits of an int."""
        return 1 << symbol if symbol < self.leaves else self._ranks[symbol - self.leaves]

    def depth(self, symbol: int) -> int:
        """How often the deepest leaf of the tree was combined. A reduction in 16 bits rounds it as often."""
        return 0 if symbol < self.leaves else self._depth[symbol - self.leaves]

    def shown(self, symbol: int) -> str:
        """The tree as text, such as ((0+1)+2). A leaf is its rank."""
        text: list[str] = []
        left: list[int | str] = [symbol]
        while left:
            top = left.pop()
            both = None if isinstance(top, str) else self.parts(top)
            if both is None:
                text.append(str(top))
            else:
                left += [")", both[1], "+", both[0], "("]
        return "".join(text)


def lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
