"""Equal bits from equal runs on a GPU, by kernels whose sums have one order.

Some kernels add up in whatever order their programs end. Under torch's switch, which this file turns, flash attention
adds up its gradients in one order, and so do indexed sums and reductions of compiled code. cuDNN's attention cannot,
and is left out (``precision.py``). cuBLAS, NCCL and the choice between compiled kernels follow variables that the
launcher sets (``launch/command.py``). Our own kernels add up in one order in any case: no program of one adds to what
another wrote.

Source: pytorch.org/docs/stable/notes/randomness; torch 2.11 ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from shardwise.errors import ShardwiseError

__all__ = ["DeterminismError", "determinism"]

WITHOUT_FORM = re.compile(r"(\S+) does not have a deterministic implementation")
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class DeterminismError(ShardwiseError):
    """Something that a run needs has no form whose sums have one order."""


@contextmanager
def determinism(*, is_wanted: bool) -> Iterator[None]:
    """Within, torch runs only what gives equal bits, where that is wanted.

    Raises:
        DeterminismError: an operator has no such form.
    """
    if not is_wanted:
        yield
        return
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Nothing reads what it has not written, and writing it all takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        named = _named(error)
        if named is None:
            raise
        raise named from error
    finally:
        torch.use_deterministic_algorithms(was_enabled)
        torch.utils.deterministic.fill_uninitialized_memory = was_filled


def _named(error: RuntimeError) -> DeterminismError | None:
    """The error in one sentence, where torch refused an operator."""
    found = WITHOUT_FORM.search(str(error))
    if found is not None:
        return DeterminismError(
            f"{found[1]} has no deterministic form on this device, and --deterministic takes no other",
            code="train-deterministic",
            fix="leave out --deterministic, or train a model that does without this operator",
        )
    if CUBLAS in str(error):
        return DeterminismError(
            f"{CUBLAS} lets cuBLAS split a product differently in equal runs, and --deterministic needs one way",
            code="train-deterministic",
            fix=f"unset {CUBLAS}, or set it to :4096:8",
        )
    return None
