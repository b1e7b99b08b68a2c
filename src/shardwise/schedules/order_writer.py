"""Writing an order down pass by pass, numbering the micro-batches of every chunk in the order they come."""

from collections import deque

from shardwise.schedules.actions import Action, Order, Pass


class OrderWriter:
    """Collects the actions of one rank; each chunk's forwards and backwards count up from micro-batch 0."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._next_forward: dict[int, int] = {}
        self._next_backward: dict[int, int] = {}
        self._pending_weights: deque[Action] = deque()

    @property
    def num_pending_weights(self) -> int:
        """Number of weight gradients that are still missing while their input gradient is written."""
        return len(self._pending_weights)

    def forward(self, chunk: int, *, joins_next: bool = False) -> None:
        """Write the forward of the next micro-batch through a chunk."""
        number = self._next_forward.get(chunk, 0)
        self._next_forward[chunk] = number + 1
        self._actions.append(Action("forward", chunk, number, joins_next))

    def backward(self, chunk: int, *, is_split: bool = False) -> None:
        """Write the next micro-batch's backward through a chunk; a split one leaves its weight gradient pending."""
        number = self._next_backward.get(chunk, 0)
        self._next_backward[chunk] = number + 1
        kind: Pass = "input_backward" if is_split else "backward"
        self._actions.append(Action(kind, chunk, number))
        if is_split:
            self._pending_weights.append(Action("weight_backward", chunk, number))

    def forward_and_backward(self, *, forward: int, backward: int) -> None:
        """Write one overlapped block: a forward of one chunk and a whole backward of another."""
        self.forward(forward, joins_next=True)
        self.backward(backward)

    def oldest_weight(self) -> None:
        """Write the weight gradient that has been pending longest, if any is."""
        if self._pending_weights:
            self._actions.append(self._pending_weights.popleft())

    def oldest_weight_of(self, chunk: int) -> None:
        """Write the weight gradient of one chunk that has been pending longest, if any is."""
        for action in self._pending_weights:
            if action.chunk == chunk:
                self._pending_weights.remove(action)
                self._actions.append(action)
                return

    def order(self, *, num_microbatches: int | None = None) -> Order:
        """The order that was written, without micro-batches that do not exist."""
        if num_microbatches is None:
            return tuple(self._actions)
        return tuple(action for action in self._actions if action.micro_batch < num_microbatches)
