"""Measurements of one machine: tables that replace the catalogue's where they reach, and factors from runs.

A calibration hangs on the cluster it is used for, so that whatever turns a plan into seconds finds it there.
"""

from dataclasses import dataclass, field
from typing import Literal

from shardwise.units import Bytes, BytesPerSecond, FlopPerSecond, Seconds

CALIBRATION_SCHEMA = "shardwise.calibration/2"
FIRST_SCHEMA = "shardwise.calibration/1"

MeasuredDevice = Literal["cuda", "cpu"]
MeasuredDtype = Literal["bf16", "fp32"]
"""Dtype of weights while they are multiplied, on GPUs and on CPUs."""
MeasuredPass = Literal["forward", "dgrad", "wgrad"]
MeasuredCall = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]
ResidualName = Literal[
    "compute",
    "host",
    "communication dp",
    "communication tp",
    "communication cp",
    "communication pp",
    "communication ep",
    "memory allocated",
    "memory reserved",
    "memory outside",
]
"""``compute`` multiplies kernels, ``host`` the time to issue them, ``communication`` the calls of one family of axes,
``memory`` what is allocated, what the allocator holds beyond it, and what lies outside the allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Where and with what a calibration was taken."""

    device_kind: MeasuredDevice
    device: str
    """Name that the driver or the operating system gives the device."""
    gpu_id: str
    """The catalogue's name of the part; empty when it has none."""
    num_processes: int
    host: str
    processor: str
    versions: tuple[tuple[str, str], ...]
    """Versions of Python, torch, CUDA, NCCL and the driver, as far as they are installed."""
    clocks_mhz: tuple[tuple[str, float], ...] = ()
    """Clock rates of the first device while it worked."""
    power_limit_w: float = 0.0
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPoint:
    """One timed matrix product, as its kernel computes it."""

    product_pass: MeasuredPass
    dtype: MeasuredDtype
    m: int
    n: int
    k: int
    duration_s: Seconds

    @property
    def rate_flop_per_s(self) -> FlopPerSecond:
        """FLOP per second that the product reached."""
        return 2.0 * self.m * self.n * self.k / self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """One timed causal attention core, forward and backward."""

    num_sequences: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    seq_len: int
    dtype: MeasuredDtype
    forward_s: Seconds
    backward_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBytes:
    """Bytes that were moved, and how long that took."""

    num_bytes: Bytes
    duration_s: Seconds

    @property
    def rate_bytes_per_s(self) -> BytesPerSecond:
        """Bytes per second that were reached."""
        return self.num_bytes / self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """One collective of one shape of group over message sizes, all groups of the shape at once."""

    kind: MeasuredCall
    group_size: int
    stride: int
    points: tuple[TimedBytes, ...]
    """The smallest message first."""

    @property
    def best_bytes_per_s(self) -> BytesPerSecond:
        """Payload over time of the message that reached most."""
        return max((point.rate_bytes_per_s for point in self.points), default=0.0)

    @property
    def shortest_s(self) -> Seconds:
        """Shortest duration of any message."""
        return min((point.duration_s for point in self.points), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPoint:
    """One block of our decoder, forward and backward, run by the runtime's own code."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    seq_len: int
    num_sequences: int
    dtype: MeasuredDtype
    is_sharded: bool
    """Whether FSDP2 gathers and reduces it."""
    forward_s: Seconds
    backward_s: Seconds
    is_compiled: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return self.num_sequences * self.seq_len

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """A key that is equal for the same block, gathered or not."""
        widths = (self.hidden_size, self.intermediate_size, self.num_attention_heads, self.num_key_value_heads)
        return (*widths, self.head_dim, self.seq_len, self.num_sequences, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesPoint:
    """The token table, the last norm, the head and the loss, forward and backward together."""

    hidden_size: int
    vocab_size: int
    num_tokens: int
    dtype: MeasuredDtype
    duration_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Measured over predicted values that the tables do not explain, drawn towards 1 while runs are few."""

    name: ResidualName
    ratio: float
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything known of one machine. Two are equal when their digests are."""

    digest: str
    """Digest of the file's content."""
    date: str = field(compare=False)
    machine: MachineFacts = field(compare=False)
    products: tuple[ProductPoint, ...] = field(default=(), compare=False)
    attention: tuple[AttentionPoint, ...] = field(default=(), compare=False)
    moves: tuple[TimedBytes, ...] = field(default=(), compare=False)
    """Elementwise kernels: bytes read and written."""
    optimizer: tuple[TimedBytes, ...] = field(default=(), compare=False)
    """AdamW in fp32 with the norm of its gradients: bytes as the inventory counts them."""
    collectives: tuple[GroupTable, ...] = field(default=(), compare=False)
    blocks: tuple[BlockPoint, ...] = field(default=(), compare=False)
    tables: tuple[TablesPoint, ...] = field(default=(), compare=False)
    kernel_launch_s: Seconds | None = field(default=None, compare=False)
    """Host time of one small kernel; of the whole kernel where the device is the host."""
    overlap_slowdown_ratio: float | None = field(default=None, compare=False)
    """How many times longer computation and a collective take while both run."""
    meeting_s: Seconds | None = field(default=None, compare=False)
    """Seconds that a collective takes longer between computations than in a loop of its own, the median of several."""
    host_to_device_bytes_per_s: BytesPerSecond | None = field(default=None, compare=False)
    device_to_host_bytes_per_s: BytesPerSecond | None = field(default=None, compare=False)
    disk_write_bytes_per_s: BytesPerSecond | None = field(default=None, compare=False)
    disk_read_bytes_per_s: BytesPerSecond | None = field(default=None, compare=False)
    residuals: tuple[Residual, ...] = field(default=(), compare=False)

    def ratio_of(self, name: ResidualName) -> float:
        """The factor learned from runs; 1 where none were seen."""
        return next((residual.ratio for residual in self.residuals if residual.name == name), 1.0)

    @property
    def best_flop_per_s(self) -> FlopPerSecond:
        """Highest rate of all timed products."""
        return max((point.rate_flop_per_s for point in self.products), default=0.0)

    @property
    def best_move_bytes_per_s(self) -> BytesPerSecond:
        """Rate of the largest timed elementwise kernel, which no cache holds; 0 when none was timed."""
        return max(self.moves, key=lambda point: point.num_bytes).rate_bytes_per_s if self.moves else 0.0

    @property
    def is_measured(self) -> bool:
        """Whether anything was timed; a calibration learned from runs alone holds factors only."""
        return bool(self.timed_parts)

    @property
    def timed_parts(self) -> tuple[str, ...]:
        """The tables that predictions read and that hold something, as a person names them; each holds by itself."""
        tables = {
            "matrix products": self.products,
            "attention": self.attention,
            "elementwise kernels": self.moves,
            "the optimizer": self.optimizer,
            "collectives": self.collectives,
            "blocks": self.blocks,
            "embedding and loss": self.tables,
        }
        return tuple(name for name, points in tables.items() if points)

    @property
    def has_compiled_blocks(self) -> bool:
        """Whether any block was timed as the compiler makes it."""
        return any(point.is_compiled for point in self.blocks)

    @property
    def runs_on_cpu(self) -> bool:
        """Whether kernels ran on the CPUs that also issue them."""
        return self.machine.device_kind == "cpu"
