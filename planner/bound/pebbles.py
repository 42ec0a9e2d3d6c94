"""The game of `planner.bound.unmaking` in numbers: sets of tensors, and the bytes of a step back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from planner.plan.problem import Problem
from planner.plan.stages import overwritten


class Game:
    """A problem in the form of the game.

    A set of tensors is an integer's bits, in the order in which the tensors are made. A tensor that
    stays once it is made has no bit: a graph output, or an output of an operation that may not run
    again.

    Attributes:
        size: per bit, bytes. owner: per bit, the operation that makes it.
        reads, makes: per operation, the set that it reads, and makes.
        frees: per operation, bits of inputs that it may write over in place.
        needs: per operation, the set that lets it run at no cost, if all of it is there; -1 for none.
        touched: per operation, the tensors that may be made at no cost once all of its inputs are there.
        own_bytes: per operation, bytes of its workspace and of all its outputs: the simulator counts
            outputs without readers while the operation runs, and a second copy of a graph output
            besides the first.
        first_bytes: per operation, bytes that the device holds in its first run.
        outputs_bytes: per operation, bytes of the graph outputs made before it, and the fixed bytes; one
            more at the end.
        lasting: (operation, last reader, bytes) of tensors made only once that are no graph output.
        easy: sets from which a game reaches the empty set within the proved peak, and the first
            operation for which this is known: for later ones no more tensors last.
        settled: operations, as bits, whose games are known to prove no more than the proved peak.
    """

    def __init__(self, problem: Problem) -> None:
        ops, tensors = problem.ops, problem.tensors
        order = sorted(range(len(tensors)), key=lambda t: tensors[t].producer)
        loose = [
            t for t in order if not tensors[t].to_end and ops[tensors[t].producer].recomputable
        ]
        bit = {t: i for i, t in enumerate(loose)}

        def chosen(some: Iterable[int]) -> int:
            return sum(1 << bit[t] for t in set(some) if t in bit)

        def bytes_of(some: Iterable[int]) -> int:
            return sum(tensors[t].bytes for t in some)

        self.size = [tensors[t].bytes for t in loose]
        self.owner = [tensors[t].producer for t in loose]
        self.reads = [chosen(op.inputs) for op in ops]
        self.makes = [chosen(op.outputs) for op in ops]
        self.frees = [
            tuple(bit[t] for t in overwritten(problem, m) if t in bit) for m in range(len(ops))
        ]
        self.own_bytes = [op.workspace_bytes + bytes_of(op.outputs) for op in ops]
        self.needs = [
            -1
            if op.workspace_bytes or bytes_of(t for t in op.outputs if t not in bit)
            # an output without bytes need not be there
            else self.reads[m] | chosen(t for t in op.outputs if tensors[t].bytes)
            for m, op in enumerate(ops)
        ]
        readers = [chosen(t for u in tensors[t].uses for t in ops[u].outputs) for t in loose]
        self.touched = list(self.reads)
        for m in range(len(ops)):
            for i in bits(self.reads[m]):
                self.touched[m] |= readers[i]
        made = [bytes_of(t for t in op.outputs if tensors[t].to_end) for op in ops]
        self.outputs_bytes = list(accumulate(made, initial=problem.fixed_bytes))
        self.lasting = [
            (x.producer, x.uses[-1], x.bytes)
            for x in tensors
            if x.uses and x.bytes and not x.to_end and not ops[x.producer].recomputable
        ]
        change = [0] * (len(ops) + 1)
        for producer, last, size in self.lasting:
            change[producer + 1] += size
            change[last + 1] -= size
        self.first_bytes: list[int] = []
        for q, lasts in enumerate(accumulate(change[:-1])):
            over = (t for t in overwritten(problem, q) if t in bit or tensors[t].uses[-1] == q)
            held = self.outputs_bytes[q] + lasts + self.own_bytes[q] - bytes_of(over)
            self.first_bytes.append(held + self.bytes_of(self.reads[q]))
        self.easy: dict[int, int] = {}
        self.settled = 0

    def settle(self, front: int) -> None:
        """Mark the operations that any game from a set goes through as settled."""
        while front:
            m = self.owner[front.bit_length() - 1]
            front &= ~self.makes[m]
            if not self.settled >> m & 1:
                self.settled |= 1 << m
                front |= self.reads[m]

    def bytes_of(self, chosen: int) -> int:
        """Return the bytes of a set."""
        return sum(self.size[i] for i in bits(chosen))

    def reduced(self, chosen: int, among: int) -> int:
        """Remove the tensors of a set that can be made from the rest of it at no cost.

        Args:
            among: only tensors of this set may be removed.
        """
        left = chosen & among
        while left:
            m = self.owner[left.bit_length() - 1]
            if not self.needs[m] & ~chosen:
                chosen &= ~self.makes[m]
            left &= ~self.makes[m]
        return chosen

    def staying_bytes(self, q: int) -> list[int]:
        """Return, per operation, the bytes that earlier ones made and that stay until q first runs.

        One more at the end.
        """
        if not self.lasting:
            return self.outputs_bytes
        made = [0] * len(self.outputs_bytes)
        for producer, last, size in self.lasting:
            if last >= q:
                made[producer + 1] += size
        return [a + b for a, b in zip(self.outputs_bytes, accumulate(made), strict=True)]


def bits(chosen: int) -> Iterator[int]:
    """Yield the bits of a set, highest first."""
    while chosen:
        highest = chosen.bit_length() - 1
        yield highest
        chosen ^= 1 << highest
