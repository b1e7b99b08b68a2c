"""torch's AdamW with a kernel of our own on GPUs, which reads and writes every number once."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from shardwise.train.torch_private import fused_adamw

SMALL_ELEMENTS = 2**18
"""Up to here a kernel for each tensor takes longer to launch than to run: 28 bytes an element at a few TB/s."""


class OnePassAdamW(torch.optim.AdamW):
    """AdamW that multiplies gradients while it reads them.

    ``begin`` counts the step and says what gradients are multiplied with; ``step`` updates the parameters that hold a
    gradient. All parameters share one count. On CPUs both are torch's fused AdamW.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float = 1e-8
    ) -> None:
        super().__init__(list(groups), lr=lr, betas=betas, eps=eps, fused=True)
        self._scalars: dict[float, Tensor] = {}
        """Factors of the newest step by learning rate; most runs have one rate for all groups."""
        self._scale = (torch.ones(()), torch.zeros(()))
        self._count: Tensor | None = None

    def begin(self, factor: Tensor | None = None) -> None:
        """The next ``step`` multiplies gradients with ``factor``."""
        device = self.param_groups[0]["params"][0].device
        factor = torch.ones((), device=device) if factor is None else factor.to(device)
        if device.type != "cuda":
            self.grad_scale, self.found_inf = _scale_of(factor)
            return
        self._scale = _scale_of(factor)
        self._make_states()
        assert self._count is not None
        self._count += 1
        group = self.param_groups[0]
        first, second = (1 - torch.pow(beta, self._count.double()) for beta in group["betas"])
        rates = {group["lr"] for group in self.param_groups}
        stacks = {rate: torch.stack([factor.double(), rate / first, second.sqrt()]) for rate in rates}
        self._scalars = {rate: stacked.float() for rate, stacked in stacks.items()}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that hold a gradient."""
        if self.param_groups[0]["params"][0].device.type != "cuda":
            return super().step(closure)
        from shardwise.train.kernels import adamw  # noqa: PLC0415 - Triton comes with CUDA builds alone

        if not self._scalars:
            self.begin()
        for group in self.param_groups:
            held = [parameter for parameter in group["params"] if parameter.grad is not None and parameter.numel()]
            small = [parameter for parameter in held if _is_small(parameter)]
            self._update_small(small, group)
            for parameter in (parameter for parameter in held if not _is_small(parameter)):
                state = self.state[parameter]
                adamw(
                    parameter.detach(),
                    parameter.grad,
                    (state["exp_avg"], state["exp_avg_sq"]),
                    self._scalars[group["lr"]],
                    betas=group["betas"],
                    decayed_fraction=group["lr"] * group["weight_decay"],
                    epsilon=group["eps"],
                )
        return None

    @torch.no_grad()
    def _update_small(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Many small tensors at once, by torch's kernel for lists: factors of adapters, norms, biases."""
        if not parameters:
            return
        assert self._count is not None
        states = [self.state[parameter] for parameter in parameters]
        inverse, found_inf = self._scale
        fused_adamw(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [self._count] * len(parameters),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=inverse,
            found_inf=found_inf,
        )

    def _make_states(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if self._count is None:
                    self._count = state.get("step", torch.zeros((), device=parameter.device))
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] = self._count


def _is_small(parameter: nn.Parameter) -> bool:
    """Whether a tensor is updated together with others, which torch's kernel wants to be of one dtype."""
    gradient = parameter.grad
    return gradient is not None and parameter.numel() <= SMALL_ELEMENTS and gradient.dtype == parameter.dtype


def _scale_of(factor: Tensor) -> tuple[Tensor, Tensor]:
    """The factor as torch's fused kernels take it: its inverse, and a flag that no gradient is infinite."""
    inverse = (1 / factor).to(dtype=torch.float32)
    return inverse, torch.zeros_like(inverse)
