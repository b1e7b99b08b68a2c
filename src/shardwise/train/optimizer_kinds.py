"""Optimizers that torch does not have, over local parts: Lion, AdamW with 8-bit moments, Muon.

Steps are written for one tensor after the other, so that no temporary is larger than one weight.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardwise.step.states import EIGHT_BIT_PIECE_ELEMENTS as PIECE
from shardwise.train.block_codes import BLOCK, SIGNED, UNSIGNED, Coded, decode, encode

EPSILON = 1e-8
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration. Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon."""
NEWTON_SCHULZ_STEPS = 5
NORM_EPSILON = 1e-7
MUON_MOMENTUM = 0.95
MUON_UPDATE_RMS = 0.2
"""Updates are given the size that AdamW's have, so that its learning rate and decay serve.
Source: Liu et al. 2025, arXiv:2502.16982, section 2.2."""

Whole = Callable[[Tensor, Tensor], Tensor]
"""The whole matrix of which a rank's tensor, of the given parameter, is a part."""
Part = Callable[[Tensor, Tensor], Tensor]
"""The part of a whole matrix that belongs to the given parameter."""


class Lion(Optimizer):
    """The sign of a momentum that looks ahead; one moment instead of two.

    Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            beta_1, beta_2 = group["betas"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                moment, gradient = state["exp_avg"], parameter.grad.to(parameter.dtype)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(moment.lerp(gradient, 1 - beta_1).sign_(), alpha=-group["lr"])
                moment.lerp_(gradient, 1 - beta_2)


class AdamW8bit(Optimizer):
    """AdamW whose two moments are kept as one byte per weight, with a scale for every 256.

    Source: Dettmers et al. 2021, arXiv:2110.02861, section 2 (block-wise dynamic quantisation).
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float = EPSILON
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Piece by piece, since moments as numbers and their codes take many times the bytes they are kept in."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for name, values in MOMENTS.items():
                zero = encode(torch.zeros(1), values=values)
                state[name] = torch.full_like(parameter, int(zero.codes), dtype=torch.uint8)
                num_scales = -(-parameter.numel() // BLOCK)
                state[f"{name}_scales"] = torch.zeros(num_scales, device=parameter.device)
        state["step"] += 1
        step, weights, gradient = float(state["step"]), parameter.view(-1), parameter.grad.reshape(-1)
        for start in range(0, parameter.numel(), PIECE):
            piece = slice(start, start + PIECE)
            coded = {
                name: Coded(
                    codes=state[name].view(-1)[piece],
                    scales=state[f"{name}_scales"][start // BLOCK : (start + PIECE) // BLOCK],
                )
                for name in MOMENTS
            }
            _update_piece(weights[piece], gradient[piece].float(), coded, step=step, group=group)

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Both moments in fp32."""
        state = self.state[parameter]
        return {
            name: decode(Coded(codes=state[name], scales=state[f"{name}_scales"]), values=values)
            for name, values in MOMENTS.items()
        }

    def take_moments(self, parameter: Tensor, moments: Mapping[str, Tensor]) -> None:
        """Keep moments as bytes; what :meth:`moments` gave comes back as the same bytes."""
        state = self.state[parameter]
        for name, values in MOMENTS.items():
            coded = encode(moments[name], values=values)
            state[name], state[f"{name}_scales"] = coded.codes, coded.scales


MOMENTS = {"exp_avg": SIGNED, "exp_avg_sq": UNSIGNED}


def _update_piece(
    weights: Tensor, gradient: Tensor, coded: Mapping[str, Coded], *, step: float, group: Mapping[str, Any]
) -> None:
    beta_1, beta_2 = group["betas"]
    first = decode(coded["exp_avg"], values=SIGNED).lerp_(gradient, 1 - beta_1)
    second = decode(coded["exp_avg_sq"], values=UNSIGNED).mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
    denominator = (second / (1 - beta_2**step)).sqrt_().add_(group["eps"])
    weights.mul_(1 - group["lr"] * group["weight_decay"])
    weights.addcdiv_(first, denominator, value=-group["lr"] / (1 - beta_1**step))
    for name, numbers in (("exp_avg", first), ("exp_avg_sq", second)):
        again = encode(numbers, values=MOMENTS[name])
        coded[name].codes.copy_(again.codes)
        coded[name].scales.copy_(again.scales)


class Muon(Optimizer):
    """Momentum whose update of a matrix is made orthogonal; vectors, tables and the head are AdamW's.

    Making a matrix orthogonal needs all of it: ranks gather the momentum of one matrix at a time and keep their part of
    the result.

    Source: Jordan et al. 2024 (Muon); Liu et al. 2025, arXiv:2502.16982 (size of updates).
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        whole: Whole,
        part: Part,
        eps: float = EPSILON,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "is_orthogonal": False}
        super().__init__(groups, defaults)
        self._whole, self._part = whole, part

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter; every rank must call it, for all parameters in the same order."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["is_orthogonal"]:
                    self._update_matrix(parameter, group)
                elif parameter.grad is not None:
                    self._update_other(parameter, group)

    def _update_matrix(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to(parameter.dtype)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - MUON_MOMENTUM)
        ahead = gradient.lerp(momentum, MUON_MOMENTUM)
        whole = self._whole(parameter, ahead)
        size = MUON_UPDATE_RMS * max(whole.shape[-2:]) ** 0.5
        update = self._part(parameter, orthogonal(whole))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * size)

    def _update_other(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (beta_1, beta_2) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(parameter))
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, gradient = float(state["step"]), parameter.grad.to(parameter.dtype)
        first = state["exp_avg"].lerp_(gradient, 1 - beta_1)
        second = state["exp_avg_sq"].mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        denominator = (second / (1 - beta_2**step)).sqrt_().add_(group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(first, denominator, value=-group["lr"] / (1 - beta_1**step))


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly the closest matrix whose singular values are all one, by five Newton-Schulz steps; of stacked ones, each.

    On GPUs in bf16, where it is as good and much faster.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    is_tall = x.size(-2) > x.size(-1)
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + NORM_EPSILON)
    # Sums ride on the products that they add to.
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = add_product(x, add_product(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
