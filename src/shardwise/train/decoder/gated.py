"""The end of SwiGLU with a backward pass that holds four tensors of the intermediate width and not six.

A compiler makes the activation and both of its gradients in one kernel, beside the three tensors that the kernel reads.
Here the gradients take the place of what is read for the last time. They are the same numbers from the same traffic.

Shapes: T tokens (any number of dims), F intermediate (this rank's part), D hidden.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor


def gated_down(gate_TF: Tensor, up_TF: Tensor, weight_DF: Tensor) -> Tensor:
    """``(silu(gate) * up) W^T``: ``(T, D)``; for compiled blocks that recompute ``up``, which backward writes over."""
    out: Tensor = _GatedDown.apply(gate_TF, up_TF, weight_DF)
    return out


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_TF: Tensor, up_TF: Tensor, weight_DF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_TF, up_TF, weight_DF)
        return F.linear(F.silu(gate_TF) * up_TF, weight_DF)

    @staticmethod
    def backward(ctx: Any, gradient_TD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate_TF, up_TF, weight_DF = ctx.saved_tensors
        own_TF = gradient_TD @ weight_DF
        activation_TF = gated_gradients(gate_TF, up_TF, own_TF)
        if not ctx.needs_input_grad[2]:
            return own_TF, up_TF, None
        return own_TF, up_TF, gradient_TD.flatten(0, -2).t() @ activation_TF.flatten(0, -2)


@torch.library.custom_op("shardwise::gated_gradients", mutates_args=("up", "gradient"))
def gated_gradients(gate: Tensor, up: Tensor, gradient: Tensor) -> Tensor:
    """``silu(gate) * up`` again; its ``gradient`` becomes that of ``gate``, and ``up`` becomes its own.

    An operator, so that a compiler sees neither inside nor a reason to keep what is written over.
    """
    if gate.device.type == "cuda":
        from shardwise.train.kernels import gated_gradients_in_place  # noqa: PLC0415 - Triton comes with CUDA alone

        return gated_gradients_in_place(gate.contiguous(), up, gradient)
    wide, factor, arrived = gate.float(), up.float(), gradient.float()
    share = torch.sigmoid(wide)
    activated = wide * share
    again, own = (activated * factor).to(gate.dtype), arrived * factor * share * (1 + wide * (1 - share))
    up.copy_(arrived * activated)
    gradient.copy_(own)
    return again


@gated_gradients.register_fake
def _(gate: Tensor, up: Tensor, gradient: Tensor) -> Tensor:
    del up, gradient
    return torch.empty_like(gate)
