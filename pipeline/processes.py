"""Several processes as one (torchrun, accelerate launch): who encodes what, and gathering it.

Every process encodes its share of a batch and gathers the others' vectors; each then computes the
same loss over the whole batch. So negatives come from the global batch, and loss and gradients
equal those of one process whatever the loss is. With one process all of this does nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if world() > 1 else 0


def own(rows: np.ndarray) -> np.ndarray:
    """This process's share of a batch's rows: every world-th.

    Never empty: with fewer rows than processes the last row is repeated, and `gathered` drops it.
    """
    mine = rows[rank()::world()]
    return mine if len(mine) else rows[-1:]


def own_of(items: Iterable[T]) -> Iterator[T]:
    """This process's share of some work."""
    return (item for place, item in enumerate(items) if place % world() == rank())


def is_idle(count: int) -> bool:
    """Whether the last round of `count` pieces of work leaves this process without one."""
    return 0 < count % world() <= rank()


class Gather(torch.autograd.Function):
    """(m, …) of each process to (world, m, …); the gradient is that of the process's own part.

    Every process computes the same loss, so the sum over processes of a part's gradients is
    world times its own; data-parallel averaging divides by world again.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(world())]
        dist.all_gather(parts, local.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[rank()] * world()


def gathered(local: Tensor, total: int) -> Tensor:
    """All rows (total, …) in the batch's order from each process's `own` rows, with gradients."""
    if world() == 1:
        return local
    most = -(-total // world())
    padding = local.new_zeros((most - len(local), *local.shape[1:]))
    parts = Gather.apply(torch.cat([local, padding]))  # (world, most, …)
    return parts.transpose(0, 1).reshape(most * world(), *local.shape[1:])[:total]


def summed(array: np.ndarray, device: torch.device) -> np.ndarray:
    """The sum of every process's array: puts together results that each filled in parts of."""
    if world() == 1:
        return array
    tensor = torch.from_numpy(array).to(device)
    dist.all_reduce(tensor)
    return tensor.cpu().numpy()


def largest(number: int, device: torch.device) -> int:
    """The largest of the processes' numbers, so that all decide alike."""
    if world() == 1:
        return number
    tensor = torch.tensor(number, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return int(tensor)


def from_first(value: T) -> T:
    """What the first process has."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def from_all(value: T) -> list[T]:
    """Every process's value, in the order of their numbers."""
    if world() == 1:
        return [value]
    values: list[T] = [value] * world()
    dist.all_gather_object(values, value)
    return values


def wait() -> None:
    """Waits until every process is here."""
    if world() > 1:
        dist.barrier()
