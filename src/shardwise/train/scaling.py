"""Loss scaling for fp16, whose gradients would otherwise vanish below 6e-8.

Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; the constants are those of ``torch.amp.GradScaler``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

INITIAL_RATIO = 2.0**16
GROWTH_STEPS = 2000
"""Steps without overflow after which the scale doubles."""


@dataclass(slots=True, kw_only=True)
class LossScale:
    """What the loss is multiplied with; 1 for ever unless the precision is fp16."""

    is_active: bool
    ratio: float = 1.0
    num_good_steps: int = 0

    @classmethod
    def of(cls, precision: str) -> "LossScale":
        """The scale a precision starts with."""
        is_active = precision == "fp16-mixed"
        return cls(is_active=is_active, ratio=INITIAL_RATIO if is_active else 1.0)

    def accepts(self, gradient_norm: Tensor) -> bool:
        """Whether the step may be taken; after an overflow it is skipped and the scale halved.

        Only fp16 waits for the device here.
        """
        if not self.is_active:
            return True
        if not bool(gradient_norm.isfinite()):
            self.ratio, self.num_good_steps = self.ratio / 2, 0
            return False
        self.num_good_steps += 1
        if self.num_good_steps == GROWTH_STEPS:
            self.ratio, self.num_good_steps = self.ratio * 2, 0
        return True

    def state_dict(self) -> dict[str, float]:
        """Scale and steps since it changed."""
        return {"ratio": self.ratio, "num_good_steps": self.num_good_steps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with a saved scale."""
        self.ratio, self.num_good_steps = float(state["ratio"]), int(state["num_good_steps"])
