"""Loss scaling for fp16, whose gradients would otherwise vanish below 6e-8.

A gradient that overflows is no failure of the run: the scale is too large for it. The step is skipped, as if its batch
had never been, and the scale is halved. All ranks decide alike, because what they look at is summed over all of them.

Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; the constants are those of ``torch.amp.GradScaler``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

INITIAL_RATIO = 2.0**16
GROWTH_STEPS = 2000
"""Steps without overflow after which the scale doubles."""
MAX_SKIPPED_IN_A_ROW = 32
"""Skipped steps after which the run ends. Sixteen take the first scale to 1, where nothing is scaled, and sixteen more
to 2^-16, where gradients of four billion fit into fp16: what overflows still is infinite whatever the scale."""


@dataclass(slots=True, kw_only=True)
class LossScale:
    """The factor on the loss; 1 for ever unless the precision is fp16."""

    is_active: bool
    ratio: float = 1.0
    num_good_steps: int = 0
    """Steps taken since the scale changed."""
    num_skipped_steps: int = 0
    """Skipped steps of the whole run."""
    num_skipped_in_a_row: int = 0
    """Steps since the last one that was taken."""

    @classmethod
    def of(cls, precision: str) -> "LossScale":
        """The scale a precision starts with."""
        is_active = precision == "fp16-mixed"
        return cls(is_active=is_active, ratio=INITIAL_RATIO if is_active else 1.0)

    def accepts(self, *, loss: Tensor, gradient_norm: Tensor) -> bool:
        """Whether the step may be taken; otherwise it is counted as skipped, and the scale is halved.

        Only fp16 waits for the device here.
        """
        if not self.is_active:
            return True
        if not bool(loss.isfinite() & gradient_norm.isfinite()):
            self.ratio, self.num_good_steps = self.ratio / 2, 0
            self.num_skipped_steps += 1
            self.num_skipped_in_a_row += 1
            return False
        self.num_good_steps, self.num_skipped_in_a_row = self.num_good_steps + 1, 0
        if self.num_good_steps == GROWTH_STEPS:
            self.ratio, self.num_good_steps = self.ratio * 2, 0
        return True

    def state_dict(self) -> dict[str, float]:
        """Scale and counts."""
        return {
            "ratio": self.ratio,
            "num_good_steps": self.num_good_steps,
            "num_skipped_steps": self.num_skipped_steps,
            "num_skipped_in_a_row": self.num_skipped_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with a saved scale; checkpoints made before steps were skipped count none."""
        self.ratio, self.num_good_steps = float(state["ratio"]), int(state["num_good_steps"])
        self.num_skipped_steps = int(state.get("num_skipped_steps", 0))
        self.num_skipped_in_a_row = int(state.get("num_skipped_in_a_row", 0))
