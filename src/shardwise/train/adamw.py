"""torch's AdamW with a kernel of our own on GPUs, which reads and writes every number once."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from shardwise.train.halved import halved, joined
from shardwise.train.torch_private import fused_adamw

SMALL_ELEMENTS = 2**18
"""Up to here a kernel for each tensor takes longer to launch than to run: 28 bytes an element at a few TB/s."""


PIECE_ELEMENTS = 2**20
"""Elements of a halved weight that are put together at a time where no kernel does it in registers."""


class OnePassAdamW(torch.optim.AdamW):
    """AdamW that multiplies gradients while it reads them, and updates fp32 weights that are kept in two halves.

    ``begin`` counts the step and says what gradients are multiplied with; ``step`` updates the parameters that hold a
    gradient. All parameters share one count. On CPUs the arithmetic is torch's fused AdamW.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float = 1e-8,
        rest_of: Callable[[Tensor], Tensor | None] = lambda _: None,
    ) -> None:
        """``rest_of`` gives what bf16 took off a parameter; ``None`` where the parameter is the weight itself."""
        super().__init__(list(groups), lr=lr, betas=betas, eps=eps, fused=True)
        self._rest_of = rest_of
        self._scalars: dict[float, Tensor] = {}
        """Factors of the newest step by learning rate; most runs have one rate for all groups."""
        self._scale = (torch.ones(()), torch.zeros(()))
        self._count: Tensor | None = None

    def begin(self, factor: Tensor | None = None) -> None:
        """The next ``step`` multiplies gradients with ``factor``."""
        device = self.param_groups[0]["params"][0].device
        factor = torch.ones((), device=device) if factor is None else factor.to(device)
        self._scale = _scale_of(factor)
        self._make_states()
        assert self._count is not None
        self._count += 1
        group = self.param_groups[0]
        first, second = (1 - torch.pow(beta, self._count.double()) for beta in group["betas"])
        rates = {group["lr"] for group in self.param_groups}
        stacks = {rate: torch.stack([factor.double(), rate / first, second.sqrt()]) for rate in rates}
        self._scalars = {rate: stacked.float() for rate, stacked in stacks.items()}

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update the parameters that hold a gradient."""
        del closure  # of torch's interface
        if not self._scalars:
            self.begin()
        for group in self.param_groups:
            held = [parameter for parameter in group["params"] if parameter.grad is not None and parameter.numel()]
            together = [parameter for parameter in held if self._is_of_list(parameter)]
            self._update(together, [parameter.grad for parameter in together], self._moments(together), group)
            for parameter in (parameter for parameter in held if not self._is_of_list(parameter)):
                self._update_alone(parameter, group)
        self._scalars = {}  # a step that nobody began begins itself

    def _is_of_list(self, parameter: nn.Parameter) -> bool:
        """Whether torch's kernel for lists updates a tensor, which has to be of its gradient's dtype.

        On GPUs it takes many small tensors at once: factors of adapters, norms, biases.
        """
        gradient = parameter.grad
        is_whole = self._rest_of(parameter) is None and gradient is not None and gradient.dtype == parameter.dtype
        return is_whole and (parameter.device.type != "cuda" or parameter.numel() <= SMALL_ELEMENTS)

    def _update_alone(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        rest, gradient = self._rest_of(parameter), parameter.grad
        assert gradient is not None
        moments = self._moments([parameter])[0]
        if parameter.device.type == "cuda":  # not is_cuda, which a trace without a GPU answers with yes
            from shardwise.train.kernels import adamw  # noqa: PLC0415 - Triton comes with CUDA builds alone

            adamw(
                parameter.detach(),
                gradient,
                moments,
                self._scalars[group["lr"]],
                rest=rest,
                betas=group["betas"],
                decayed_fraction=group["lr"] * group["weight_decay"],
                epsilon=group["eps"],
            )
            return
        flat = [tensor.detach().view(-1) for tensor in (parameter, gradient, *moments)]
        for start in range(0, parameter.numel(), PIECE_ELEMENTS):
            half, own, mean, square = (tensor[start : start + PIECE_ELEMENTS] for tensor in flat)
            left = None if rest is None else rest.view(-1)[start : start + PIECE_ELEMENTS]
            whole = half.float() if left is None else joined(half, left)
            self._update([whole], [own.float()], [(mean, square)], group)
            if left is None:
                half.copy_(whole)
                continue
            for target, part in zip((half, left), halved(whole), strict=True):
                target.copy_(part)

    @torch.no_grad()
    def _update(
        self, weights: list[Any], gradients: list[Any], moments: list[tuple[Tensor, Tensor]], group: dict[str, Any]
    ) -> None:
        """Update many tensors at once, by torch's kernel for lists."""
        if not weights:
            return
        assert self._count is not None
        inverse, found_inf = self._scale
        fused_adamw(
            weights,
            gradients,
            [mean for mean, _ in moments],
            [square for _, square in moments],
            [],
            [self._count] * len(weights),
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

    def _moments(self, parameters: list[nn.Parameter]) -> list[tuple[Tensor, Tensor]]:
        return [(self.state[one]["exp_avg"], self.state[one]["exp_avg_sq"]) for one in parameters]

    def _make_states(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if self._count is None:
                    self._count = state.get("step", torch.zeros((), device=parameter.device))
                if not state:
                    dtype = parameter.dtype if self._rest_of(parameter) is None else torch.float32
                    state["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
                    state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=dtype)
                state["step"] = self._count


def _scale_of(factor: Tensor) -> tuple[Tensor, Tensor]:
    """The factor as torch's fused kernels take it: its inverse, and a flag that no gradient is infinite."""
    inverse = (1 / factor).to(dtype=torch.float32)
    return inverse, torch.zeros_like(inverse)
