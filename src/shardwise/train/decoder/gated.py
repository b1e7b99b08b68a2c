"""The end of SwiGLU with a backward pass that holds three or four tensors of the intermediate width and not six.

A compiler makes the activation and both of its gradients in one kernel, beside the three tensors that the kernel reads.
Here the gradients take the place of what is read for the last time. They are the same numbers from the same traffic.

Where more than a product with one dense matrix follows (adapters beside it, 4-bit and 8-bit matrices), a compiler would
put the sums with what adapters add and their scaled gradients into that kernel too, and hold eleven such tensors. There
the activation alone is differentiated so, beside its output, which the products keep.

Routed experts have gate and up side by side in one tensor, and a weight for every row. Torch's compiler makes their
gradients in two kernels that read gate and up twice; here one kernel makes all of them.

Shapes: T tokens (any number of dims), F intermediate (this rank's part), D hidden; R rows and E experts.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor

from shardwise.train.torch_private import grouped_mm


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


def weighted_down(gate_up_RF: Tensor, weights_R: Tensor, down_EDF: Tensor, ends_E: Tensor) -> Tensor:
    """``silu(gate) * up`` of every row, times the row's weight and its expert's matrix: ``(R, D)`` in bf16.

    Args:
        gate_up_RF: gate beside up, ``(R, 2 F)``.
        weights_R: bf16.
        down_EDF: the matrices of all experts.
        ends_E: int32; expert ``e`` has the rows before ``ends_E[e]`` that no expert before it has.
    """
    out: Tensor = _WeightedDown.apply(gate_up_RF, weights_R, down_EDF, ends_E)
    return out


class _WeightedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_RF: Tensor, weights_R: Tensor, down_EDF: Tensor, ends_E: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_RF, weights_R, down_EDF, ends_E)
        gate_RF, up_RF = gate_up_RF.chunk(2, dim=-1)
        hidden_RF = F.silu(gate_RF) * up_RF * weights_R.unsqueeze(-1)
        return grouped_mm(hidden_RF, down_EDF.transpose(1, 2), offs=ends_E)

    @staticmethod
    def backward(ctx: Any, gradient_RD: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        gate_up_RF, weights_R, down_EDF, ends_E = ctx.saved_tensors
        arrived_RF = grouped_mm(gradient_RD, down_EDF, offs=ends_E)
        own_RF, own_R, hidden_RF = weighted_gate_gradients(gate_up_RF, weights_R, arrived_RF)
        own_EDF = grouped_mm(gradient_RD.t(), hidden_RF, offs=ends_E) if ctx.needs_input_grad[2] else None
        return own_RF, own_R, own_EDF, None


@torch.library.custom_op("shardwise::weighted_gate_gradients", mutates_args=())
def weighted_gate_gradients(gate_up: Tensor, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``gate_up`` and of ``weights``, and ``silu(gate) * up * weights`` itself."""
    if gate_up.device.type == "cuda":
        from shardwise.train.kernels import differentiate_weighted_gate  # noqa: PLC0415 - Triton comes with CUDA alone

        return differentiate_weighted_gate(gate_up.contiguous(), weights.contiguous(), gradient.contiguous())
    gate, up = gate_up.float().chunk(2, dim=-1)
    factor, arrived = weights.float().unsqueeze(-1), gradient.float()
    share = torch.sigmoid(gate)
    hidden = gate * share * up
    scaled = arrived * factor
    own = torch.cat((scaled * up * share * (1 + gate * (1 - share)), scaled * gate * share), dim=-1)
    own_weights = (arrived * hidden).sum(dim=-1)
    return own.to(gate_up.dtype), own_weights.to(weights.dtype), (hidden * factor).to(gate_up.dtype)


@weighted_gate_gradients.register_fake
def _(gate_up: Tensor, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(gate_up, memory_format=torch.contiguous_format),
        torch.empty_like(weights, memory_format=torch.contiguous_format),
        torch.empty_like(gradient, memory_format=torch.contiguous_format),
    )


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
