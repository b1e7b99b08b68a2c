"""The end of SwiGLU with a backward pass that holds three or four tensors of the intermediate width and not six.

A compiler makes the activation and both of its gradients in one kernel, beside the three tensors that the kernel reads.
Here the gradients take the place of what is read for the last time. They are the same numbers from the same traffic.

Where more than a product with one dense matrix follows (adapters beside it, 4-bit and 8-bit matrices), a compiler would
put the sums with what adapters add and their scaled gradients into that kernel too, and hold eleven such tensors. There
the activation alone is differentiated so, beside its output, which the products keep.

Shapes: T tokens (any number of dims), F intermediate (this rank's part), D hidden.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor


def gated_down(gate_TF: Tensor, up_TF: Tensor, weight_DF: Tensor, *, writes_over_gate: bool) -> Tensor:
    """``(silu(gate) * up) W^T``: ``(T, D)``; for compiled blocks that recompute ``up``, which backward writes over.

    ``writes_over_gate``: ``gate`` is recomputed as well, and serves for the activation.
    """
    out: Tensor = _GatedDown.apply(gate_TF, up_TF, weight_DF, writes_over_gate)
    return out


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_TF: Tensor, up_TF: Tensor, weight_DF: Tensor, writes_over_gate: bool) -> Tensor:
        ctx.save_for_backward(gate_TF, up_TF, weight_DF)
        ctx.writes_over_gate = writes_over_gate
        return F.linear(F.silu(gate_TF) * up_TF, weight_DF)

    @staticmethod
    def backward(ctx: Any, gradient_TD: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        gate_TF, up_TF, weight_DF = ctx.saved_tensors
        own_TF = gradient_TD @ weight_DF
        if ctx.writes_over_gate:
            gated_gradients_in_place(gate_TF, up_TF, own_TF)
            activation_TF = gate_TF
        else:
            activation_TF = gated_gradients(gate_TF, up_TF, own_TF)
        if not ctx.needs_input_grad[2]:
            return own_TF, up_TF, None, None
        return own_TF, up_TF, gradient_TD.flatten(0, -2).t() @ activation_TF.flatten(0, -2), None


def gated(gate_TF: Tensor, up_TF: Tensor, *, writes_over_gate: bool) -> Tensor:
    """``silu(gate) * up`` for what is no plain product, in compiled blocks that recompute ``up``; else the same."""
    out: Tensor = _Gated.apply(gate_TF, up_TF, writes_over_gate)
    return out


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_TF: Tensor, up_TF: Tensor, writes_over_gate: bool) -> Tensor:
        ctx.save_for_backward(gate_TF, up_TF)
        ctx.writes_over_gate = writes_over_gate
        return F.silu(gate_TF) * up_TF

    @staticmethod
    def backward(ctx: Any, gradient_TF: Tensor) -> tuple[Tensor, Tensor, None]:
        gate_TF, up_TF = ctx.saved_tensors
        own_TF = gradient_TF.clone()
        if ctx.writes_over_gate:
            gated_gradients_in_place(gate_TF, up_TF, own_TF)
        else:
            gated_gradients(gate_TF, up_TF, own_TF)
        return own_TF, up_TF, None


@torch.library.custom_op("shardwise::gated_gradients", mutates_args=("up", "gradient"))
def gated_gradients(gate: Tensor, up: Tensor, gradient: Tensor) -> Tensor:
    """Recompute ``silu(gate) * up``, and write the gradients of ``gate`` and ``up`` over ``gradient`` and ``up``.

    An operator, so that a compiler sees neither inside nor a reason to keep what is written over.
    """
    activation = torch.empty_like(gate)
    _differentiate(gate, up, gradient, activation=activation)
    return activation


@gated_gradients.register_fake
def _(gate: Tensor, up: Tensor, gradient: Tensor) -> Tensor:
    del up, gradient
    return torch.empty_like(gate)


@torch.library.custom_op("shardwise::gated_gradients_in_place", mutates_args=("gate", "up", "gradient"))
def gated_gradients_in_place(gate: Tensor, up: Tensor, gradient: Tensor) -> None:
    """``gated_gradients``, but the recomputed activation is written over ``gate``."""
    _differentiate(gate, up, gradient, activation=gate)


def _differentiate(gate: Tensor, up: Tensor, gradient: Tensor, *, activation: Tensor) -> None:
    if gate.device.type == "cuda" and all(tensor.is_contiguous() for tensor in (gate, up, gradient)):
        from shardwise.train.kernels import differentiate_gated  # noqa: PLC0415 - Triton comes with CUDA alone

        differentiate_gated(gate, up, gradient, activation=activation)
        return
    wide, factor, arrived = gate.float(), up.float(), gradient.float()
    share = torch.sigmoid(wide)
    activated = wide * share
    again, own, other = activated * factor, arrived * factor * share * (1 + wide * (1 - share)), arrived * activated
    # In fp32 the wide ones are what is written over, so nothing is before all is made.
    for place, made in ((activation, again), (gradient, own), (up, other)):
        place.copy_(made)
