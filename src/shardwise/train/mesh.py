"""The device mesh: its axes are the fields of the layout, and their groups are what each technique asks for.

Ranks are numbered with tp fastest, then cp, dp_shard, dp_replicate, and pp slowest. Experts borrow ranks from the
fastest axes up, so dp_shard is two axes of which the inner one belongs to them.
"""

from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.train.torch_private import flattened

AXES = ("pp", "dp_replicate", "dp_shard_outer", "dp_shard_inner", "cp", "undivided", "tp")
"""``undivided`` has one rank: sharding over it replicates, so replication and sharding are one code path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The mesh of the whole job and the views of it that are used."""

    layout: Layout
    whole: DeviceMesh
    shards: DeviceMesh
    """Ranks that divide dense states: dp_shard and cp."""
    replicas_and_shards: DeviceMesh
    """``(dp_replicate, shards)``."""
    copies: DeviceMesh
    """Every rank that runs the same part of the model on other tokens: dp_replicate, dp_shard and cp."""
    copies_undivided: DeviceMesh
    """``(copies, undivided)``: every rank keeps whole states."""
    expert_shards: DeviceMesh
    """Ranks that divide the states of the same experts."""
    replicas_and_expert_shards: DeviceMesh
    experts: DeviceMesh
    """Ranks that divide the experts among them."""

    def group(self, axis: str) -> ProcessGroup | None:
        """The process group of one axis; ``None`` when its degree is 1."""
        axis_mesh = self.whole[axis]
        return axis_mesh.get_group() if axis_mesh.size() > 1 else None

    def rank(self, axis: str) -> int:
        """This rank's place on an axis."""
        return int(self.whole.get_local_rank(axis))

    @property
    def data_parallel_rank(self) -> int:
        """Which of the ranks that read different sequences this is."""
        shard = self.rank("dp_shard_outer") * self.whole["dp_shard_inner"].size() + self.rank("dp_shard_inner")
        return self.rank("dp_replicate") * self.layout.dp_shard + shard

    @property
    def device_type(self) -> str:
        """``cuda`` or ``cpu``."""
        return str(self.whole.device_type)


def make_mesh(layout: Layout, *, device_type: str) -> Mesh:
    """The mesh of a layout; every rank of the job calls this.

    Raises:
        LayoutError: experts would borrow only a part of the tp or cp ranks.
    """
    inner = max(1, layout.ep // (layout.cp * layout.tp))
    if layout.ep > 1 and inner * layout.cp * layout.tp != layout.ep:
        raise LayoutError(
            f"ep={layout.ep} borrows only a part of the tp={layout.tp} and cp={layout.cp} ranks",
            code="train-expert-ranks",
            fix=f"set ep to a multiple of {layout.cp * layout.tp}",
        )
    sizes = (layout.pp, layout.dp_replicate, layout.dp_shard // inner, inner, layout.cp, 1, layout.tp)
    whole = init_device_mesh(device_type, sizes, mesh_dim_names=AXES)
    shards = flattened(whole["dp_shard_outer", "dp_shard_inner", "cp"], "shards")
    copies = flattened(whole["dp_replicate", "dp_shard_outer", "dp_shard_inner", "cp"], "copies")
    borrowed = ("dp_shard_inner", "cp", "tp") if layout.ep > 1 else ("dp_shard_inner",)
    experts = flattened(whole[borrowed], "experts") if layout.ep > 1 else whole["dp_shard_inner"]
    expert_shards = whole["dp_shard_outer"] if layout.ep > 1 else shards
    is_replicated = layout.dp_replicate > 1
    return Mesh(
        layout=layout,
        whole=whole,
        shards=shards,
        replicas_and_shards=whole["dp_replicate", "shards"] if is_replicated and shards.size() > 1 else shards,
        copies=copies,
        copies_undivided=whole["copies", "undivided"] if copies.size() > 1 else copies,
        expert_shards=expert_shards,
        replicas_and_expert_shards=_with_replicas(whole, layout) if is_replicated else expert_shards,
        experts=experts,
    )


def pipeline_ends(mesh: Mesh) -> ProcessGroup | None:
    """The first and the last stage of this rank's pipeline, on these two; every rank of the job calls this."""
    pp, own = mesh.layout.pp, torch.distributed.get_rank()
    if pp == 1:
        return None
    lines = mesh.whole.mesh.reshape(pp, -1).t().tolist()
    groups = [(line, torch.distributed.new_group([line[0], line[-1]])) for line in lines]
    return next((group for line, group in groups if own in (line[0], line[-1])), None)


def _with_replicas(whole: DeviceMesh, layout: Layout) -> DeviceMesh:
    """``(dp_replicate, expert_shards)``; torch refuses to order a flattened axis of one rank."""
    if layout.ep > 1:
        return whole["dp_replicate", "dp_shard_outer"]
    return whole["dp_replicate", "shards"] if layout.state_shard_size > 1 else whole["dp_replicate", "undivided"]


def pick_device(kind: str, *, local_rank: int) -> torch.device:
    """The device of this process: its own GPU, or the CPU where there is none."""
    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", local_rank)
    return torch.device("cpu")
