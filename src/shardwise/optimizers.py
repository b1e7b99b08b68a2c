"""One record for each optimizer: which moments it keeps, how many bytes a step moves, and which class trains it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

OptimizerName = Literal[
    "adamw",
    "adamw-8bit",
    "sgd",
    "sgd-momentum",
    "adafactor",
    "lion",
    "muon",
]
SeedOptimizer = Literal["adam", "sgd", "none"]
"""Optimizers that the seeds' arithmetic knows (``formulas/seed.py``)."""
StepTemporary = Literal["none", "foreach", "always"]
TrainerOption = Literal["betas", "eps", "momentum", "foreach", "whole", "part", "rest_of"]

DEFAULT_OPTIMIZER: OptimizerName = "adamw"
"""A plan that names no optimizer gets this one, and every engine has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """One optimizer."""

    name: OptimizerName
    moments: int
    """Full-size moments that it keeps of every parameter; their dtype is the engine's, unless the next fields say
    otherwise."""
    eight_bit_of: OptimizerName | None = None
    """The optimizer whose moments this one keeps in 8 bits. Checkpoints hold the moments as numbers, so either can go
    on from the other's."""
    is_factored: bool = False
    """It keeps row and column statistics of matrices instead of a full second moment."""
    orthogonalises_matrices: bool = False
    """Hidden matrices have one moment, and each is updated as a whole; everything else is AdamW's."""
    state_traffic_bytes: int
    """Bytes per parameter that one step reads and writes of fp32 moments."""
    own_state_traffic_bytes: int | None = None
    """Bytes per parameter that one step of our trainer moves, where it runs eager kernels one after the other; ``None``
    where it moves ``state_traffic_bytes``."""
    step_temporary: StepTemporary = "none"
    """Whether torch's step makes one temporary as large as the parameters it updates: only where it updates in its
    multi-tensor way (``foreach``), or always, because there is no other."""
    has_fused_kernel: bool = False
    """Whether torch's loops choose between one fused kernel and the multi-tensor way (``fused_optimizer``)."""
    clips_in_update: bool = False
    """Whether our trainer's kernel multiplies gradients by the clipping factor as it reads them, so that clipping is no
    pass of its own."""
    updates_halves: bool = False
    """Whether our trainer's update takes weights in two halves of 16 bits (``train/halves.py``)."""
    seed_optimizer: SeedOptimizer = "none"
    """How the seeds' arithmetic counts it."""
    torch_class: str | None = None
    """The class that our trainer builds, by its full name; ``None`` where it builds none."""
    trainer_options: tuple[TrainerOption, ...] = ()
    """Arguments of the class besides groups of parameters and a learning rate (``train/optimizers.py``)."""
    source: str

    @property
    def is_8bit(self) -> bool:
        """Whether each moment is one byte, with a scale for every block."""
        return self.eight_bit_of is not None


_KINDS = (
    OptimizerKind(
        name="adamw",
        moments=2,
        state_traffic_bytes=16,
        # torch optim/adamw.py, _multi_tensor_adamw: the denominators of all parameters at once; measured.
        step_temporary="foreach",
        has_fused_kernel=True,
        clips_in_update=True,
        updates_halves=True,
        seed_optimizer="adam",
        torch_class="shardwise.train.adamw.OnePassAdamW",
        trainer_options=("betas", "eps", "rest_of"),
        source="Kingma & Ba, arXiv:1412.6980; Loshchilov & Hutter, arXiv:1711.05101",
    ),
    OptimizerKind(
        name="adamw-8bit",
        moments=2,
        eight_bit_of="adamw",
        state_traffic_bytes=4,
        # Counted over train/optimizer_kinds.py and train/block_codes.py, weights and gradients apart: both moments
        # decoded (29 each) and encoded (41 each, and 22 to keep the divisor above zero), 68 of the step between.
        own_state_traffic_bytes=230,
        torch_class="shardwise.train.optimizer_kinds.AdamW8bit",
        trainer_options=("betas", "eps"),
        source="Dettmers et al., arXiv:2110.02861",
    ),
    OptimizerKind(
        name="sgd",
        moments=0,
        state_traffic_bytes=0,
        seed_optimizer="sgd",
        torch_class="torch.optim.SGD",
        trainer_options=("foreach",),
        source="torch optim/sgd.py",
    ),
    OptimizerKind(
        name="sgd-momentum",
        moments=1,
        state_traffic_bytes=8,
        seed_optimizer="sgd",
        torch_class="torch.optim.SGD",
        trainer_options=("momentum", "foreach"),
        source="torch optim/sgd.py",
    ),
    OptimizerKind(
        name="adafactor",
        moments=0,
        is_factored=True,
        # One pass over the squared gradient.
        state_traffic_bytes=4,
        # torch optim/_adafactor.py has no fused kernel; measured: exactly one copy.
        step_temporary="always",
        # One row and one column of second moments per matrix, of this rank's part of it.
        torch_class="torch.optim.Adafactor",
        trainer_options=("foreach",),
        source="Shazeer & Stern, arXiv:1804.04235",
    ),
    OptimizerKind(
        name="lion",
        moments=1,
        state_traffic_bytes=8,
        step_temporary="foreach",
        torch_class="shardwise.train.optimizer_kinds.Lion",
        trainer_options=("betas",),
        source="Chen et al., arXiv:2302.06675",
    ),
    OptimizerKind(
        name="muon",
        moments=2,
        orthogonalises_matrices=True,
        state_traffic_bytes=8,
        # Momentum and what looks ahead (24), casts (12), norm and quotient (6), sums on fp32 weights (8).
        own_state_traffic_bytes=50,
        torch_class="shardwise.train.optimizer_kinds.Muon",
        trainer_options=("betas", "eps", "whole", "part"),
        source="Jordan 2024, kellerjordan.github.io/posts/muon",
    ),
)

OPTIMIZERS: Mapping[OptimizerName, OptimizerKind] = MappingProxyType({kind.name: kind for kind in _KINDS})


def eight_bit_form(name: OptimizerName) -> OptimizerName | None:
    """The optimizer that keeps the moments of this one in 8 bits, where there is one.

    >>> eight_bit_form("adamw")
    'adamw-8bit'
    """
    return next((kind.name for kind in OPTIMIZERS.values() if kind.eight_bit_of == name), None)


def have_same_states(first: OptimizerName, second: OptimizerName) -> bool:
    """Whether checkpoints of both hold the same tensors with the same meaning.

    >>> have_same_states("adamw-8bit", "adamw"), have_same_states("sgd", "adamw")
    (True, False)
    """
    kept = [OPTIMIZERS[name].eight_bit_of or name for name in (first, second)]
    return kept[0] == kept[1]
