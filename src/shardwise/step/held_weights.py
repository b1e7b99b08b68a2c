"""How many elements of each unit's weights one rank holds, before and after data-parallel sharding."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from math import ceil

from shardwise.layout import Layout
from shardwise.model import LayerSpec, Weight
from shardwise.recipe import LoraTargets
from shardwise.step.layer_placement import local_num_params, tensor_shards

LORA_TARGET_NAMES: dict[str, tuple[str, ...]] = {
    "qv": ("q_proj", "v_proj", "query_key_value", "c_attn", "qkv", "Wqkv"),
    "attention": (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "query_key_value",
        "c_attn",
        "qkv",
        "Wqkv",
        "dense",
        "out_proj",
    ),
    "all-linear": (),
}
"""Names of the matrices that a set selects; empty selects every matrix of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWeights:
    """Elements of one unit (embedding, block or head) on the worst rank."""

    dense: int
    """Elements that are not routed: after tensor parallelism, whole over data parallel."""
    expert: int
    """Elements of routed experts: after expert and expert-tensor parallelism."""
    dense_shard: int
    """The worst rank's data-parallel shard of ``dense``."""
    expert_shard: int
    matrices: int
    """Elements of the distinct matrix shapes of ``dense`` and of one routed expert."""
    largest_matrix: int
    factored: int
    """Row plus column sums of the matrices, and the vectors: what Adafactor keeps instead of a second moment."""

    @property
    def full(self) -> int:
        """Everything the rank computes with."""
        return self.dense + self.expert

    @property
    def shard(self) -> int:
        """Everything the rank keeps when states are divided over data parallel."""
        return self.dense_shard + self.expert_shard


EMPTY = HeldWeights(dense=0, expert=0, dense_shard=0, expert_shard=0, matrices=0, largest_matrix=0, factored=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The degrees that divide weights."""

    tp: int
    ep: int
    expert_tp: int
    num_state_shards: int
    """Ranks that dense model states are divided over."""
    num_expert_state_shards: int
    """Ranks that one routed expert's states are divided over."""

    @classmethod
    def of(cls, layout: Layout) -> "Division":
        """The degrees of a layout."""
        return cls(
            tp=layout.tp,
            ep=layout.ep,
            expert_tp=layout.expert_tp,
            num_state_shards=layout.state_shard_size,
            num_expert_state_shards=layout.expert_state_shard_size,
        )


@lru_cache(maxsize=8192)
def hold(weights: tuple[Weight, ...], division: Division, *, is_sharded_by_tensor: bool) -> HeldWeights:
    """Numbers of parameters of ``weights`` that the fullest rank holds, whole and sharded.

    Args:
        weights: the weights of one unit.
        division: the degrees that divide them.
        is_sharded_by_tensor: FSDP2 cuts every tensor along its first dim in ``ceil`` chunks; otherwise tensors are
            flattened together first.
    """
    dense = expert = dense_shard = expert_shard = matrices = largest = factored = 0
    for weight in weights:
        local = local_num_params(weight, division)
        factored += (
            local * (weight.shape[-1] + weight.shape[-2]) // (weight.shape[-1] * weight.shape[-2])
            if (len(weight.shape) >= 2)
            else local
        )
        if weight.is_expert:
            expert += local
            expert_shard += ceil(local / division.num_expert_state_shards)
            one_expert = local // max(1, weight.shape[0] // division.ep)
            matrices += one_expert if len(weight.shape) == 3 else 0
            continue
        dense += local
        if is_sharded_by_tensor:
            dense_shard += _first_dim_shard(weight, division, local)
        if weight.is_matrix:
            matrices += local
            largest = max(largest, local)
    if not is_sharded_by_tensor:
        dense_shard = ceil(dense / division.num_state_shards)
    return HeldWeights(
        dense=dense,
        expert=expert,
        dense_shard=dense_shard,
        expert_shard=expert_shard,
        matrices=matrices,
        largest_matrix=largest,
        factored=factored,
    )


def _first_dim_shard(weight: Weight, division: Division, local: int) -> int:
    """Largest FSDP2 shard: rows are cut in ceil chunks, so the first rank holds the most.

    Source: torch ``distributed/fsdp/_fully_shard/_fsdp_param.py`` (``_chunk_with_empty`` along dim 0).
    """
    cuts_rows = weight.split in ("column", "vocab")
    rows = ceil(weight.shape[0] / tensor_shards(weight, division)) if cuts_rows else weight.shape[0]
    return ceil(rows / division.num_state_shards) * ceil(local / rows)


def is_target(module: str, targets: LoraTargets) -> bool:
    """Whether the matrix of a module gets an adapter.

    A word of ``targets`` is a set, or a name or pattern that the end of the module's path has to fit.

    >>> [is_target("self_attn.q_proj", words) for words in ("qv", "mlp.*", "k_proj,q_proj", "self_attn.?_proj")]
    [True, False, True, True]
    """
    return any(_fits(module, word) for word in target_words(targets))


def target_words(targets: LoraTargets) -> tuple[str, ...]:
    """The sets, names and patterns that a list of targets holds."""
    return tuple(word.strip() for word in targets.split(","))


def idle_targets(layers: tuple[LayerSpec, ...], targets: LoraTargets) -> tuple[str, ...]:
    """The words of a list of targets that fit no matrix of a model."""
    modules = {_module(weight) for layer in set(layers) for weight in layer.weights if _may_be_adapted(weight)}
    return tuple(word for word in target_words(targets) if not any(_fits(module, word) for module in modules))


def adapts_feed_forward(layers: tuple[LayerSpec, ...], targets: LoraTargets) -> bool:
    """Whether a matrix outside attention gets an adapter, which keeps its input for the factor beside it."""
    words = target_words(targets)
    if "all-linear" in words or all(word in LORA_TARGET_NAMES for word in words):
        return "all-linear" in words
    outside = {_module(weight) for layer in set(layers) for weight in layer.weights if _may_be_adapted(weight)}
    return any(is_target(module, targets) for module in outside if "att" not in module.lower())


def _fits(module: str, word: str) -> bool:
    if word in LORA_TARGET_NAMES:
        names = LORA_TARGET_NAMES[word]
        return not names or module.rpartition(".")[2] in names
    return fnmatchcase(module, word) or fnmatchcase(module, f"*.{word}")


def _module(weight: Weight) -> str:
    """Path of the module that holds a weight; parts of a fused matrix are in one module."""
    return weight.name.partition(".weight")[0]


def _may_be_adapted(weight: Weight) -> bool:
    return weight.is_matrix and weight.role != "router" and not weight.is_expert and len(weight.shape) == 2


def adapter_weights(layer: LayerSpec, *, rank: int, targets: LoraTargets) -> tuple[Weight, ...]:
    """The LoRA matrices added to one block: A ``(rank, in)`` and B ``(out, rank)`` for every target.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """
    added: list[Weight] = []
    for weight in layer.weights:
        if not _may_be_adapted(weight) or not is_target(_module(weight), targets):
            continue
        out_features, in_features = weight.shape
        added.append(
            Weight(
                name=f"{weight.name}.lora_A",
                shape=(rank, in_features),
                split="row" if weight.split == "row" else "replicated",
            )
        )
        added.append(
            Weight(
                name=f"{weight.name}.lora_B",
                shape=(out_features, rank),
                split="column" if weight.split == "column" else "replicated",
                split_limit=weight.split_limit,
            )
        )
    return tuple(added)
