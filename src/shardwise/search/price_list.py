"""The price list of simplicity: the gain that each step beyond the canonical layout needs to be recommended, and why.

The canonical layout of a dense model is data parallelism whose shard groups fill a server or more; of a mixture of
experts, expert parallelism beside it. A step beyond it has a price: the share that is added to a plan's step
time before plans are compared. Conditions are written for the numbers of one plan and for columns of plans
(:mod:`shardwise.columns`). Reasons in full: ``docs/decisions/0017-simplicity-has-a-price-list.md``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.columns import given, is_among, negated
from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.rules.world import fast_domain_gpus
from shardwise.search.simplicity import straddles_nodes

__all__ = ["MAX_LOSS_FRACTION", "PRICES", "Price", "asked_fraction", "charged", "num_untried", "price_fraction"]

MAX_LOSS_FRACTION = 0.10
"""A recommended plan is at most this much slower than the fastest safe one that takes the fewest untried steps."""
SHORT_SEQUENCE_TOKENS = 32768
"""Shorter sequences fit one GPU of today with recomputation, so that nothing forces them to be cut."""
MAX_SAFETY_FRACTION = 0.25
"""A plan at the edge of the device is recommended, to be tried first, where every safe one moves more to the host and
takes more than this much longer: a trial takes minutes, and the safe plan stands beside it."""
USUAL_SCHEDULES = ("1f1b", "interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One step beyond the canonical layout."""

    name: str
    """The step in words that fit into a sentence."""
    gain_fraction: float
    """Share of its own step time that is added to it where plans are compared."""
    reason: str
    is_due: Callable[[Plan], bool]
    """Whether a plan takes the step; of columns, a column."""
    is_untried: bool = False
    """Whether nearly nobody publishes how fast such runs are: no other plan is held to the speed of one."""


def _has_fast_links(plan: Plan) -> bool:
    node = plan.cluster.node
    return node.scale_up_bandwidth_bytes_per_s > node.gpu.pcie_bandwidth_bytes_per_s


def _shares_fast_links(plan: Plan) -> bool:
    return _has_fast_links(plan) and plan.cluster.num_gpus <= fast_domain_gpus(plan.cluster)


def _is_uneven(plan: Plan) -> bool:
    return len(set(plan.layout.stage_layers or ())) > 1


def _is_uneven_by_more_than_one(plan: Plan) -> bool:
    layers = plan.layout.stage_layers or (0,)
    return max(layers) - min(layers) > 1


def _cuts_short_sequences(plan: Plan) -> bool:
    return (plan.layout.cp > 1) & (plan.recipe.seq_len < SHORT_SEQUENCE_TOKENS)


def _cuts_before_matrices(plan: Plan) -> bool:
    fills_server = plan.layout.tp >= plan.cluster.node.gpus_per_node
    return _has_fast_links(plan) & _cuts_short_sequences(plan) & negated(fills_server)


def _shards_within_servers(plan: Plan) -> bool:
    layout = plan.layout
    group = layout.tp * layout.state_shard_size
    divides = (layout.zero_stage > 0) & (layout.dp_shard > 1)
    return divides & (layout.dp_replicate > 1) & (group < plan.cluster.node.gpus_per_node)


def _holds_many_experts(plan: Plan) -> bool:
    moe = plan.model.moe
    return moe is not None and 2 * plan.layout.ep < min(plan.cluster.node.gpus_per_node, moe.num_experts)


def _sends_tokens_between_servers(plan: Plan) -> bool:
    return plan.layout.ep > fast_domain_gpus(plan.cluster)


def _divides_like_another_engine(plan: Plan) -> bool:
    layout = plan.layout
    divides_more = (layout.zero_stage > 1) & (layout.state_shard_size > 1)
    return divides_more & (ENGINES[plan.engine].default_zero_stage == 1)


def _recomputes_part(plan: Plan) -> bool:
    layers = plan.recipe.recompute_layers
    return layers is not None and (layers > 0) & negated(plan.recipe.recompute == "none")


def _pipes_adapters(plan: Plan) -> bool:
    is_unusual = plan.recipe.adapter != "none" and ENGINES[plan.engine].profile.sharding != "megatron"
    return (plan.layout.pp > 1) & is_unusual


PRICES: tuple[Price, ...] = (
    Price(
        name="tensor parallelism",
        gain_fraction=0.02,
        reason="Four exchanges in every layer wait for the slowest of the group, and matrices become narrower.",
        is_due=lambda plan: plan.layout.tp > 1,
    ),
    Price(
        name="tensor parallelism of a mixture of experts",
        gain_fraction=0.03,
        reason="Experts are narrow already and divide whole; expert parallelism comes first.",
        is_due=lambda plan: plan.model.is_moe & (plan.layout.tp > 1),
    ),
    Price(
        name="tensor parallelism inside experts",
        gain_fraction=0.03,
        reason="It cuts the narrowest matrices of the model, where whole experts could be divided.",
        is_due=lambda plan: plan.layout.expert_tp > 1,
    ),
    Price(
        name="experts divided over less than half a server",
        gain_fraction=0.20,
        reason="Published mixtures of experts divide them over a server or more; half of the predictions of such runs "
        "are off by a sixth or more, and others were never measured.",
        is_due=_holds_many_experts,
        is_untried=True,
    ),
    Price(
        name="experts spread over servers",
        gain_fraction=0.02,
        reason="Every layer's exchange of tokens then crosses the network, in many small messages.",
        is_due=_sends_tokens_between_servers,
    ),
    Price(
        name="a pipeline",
        gain_fraction=0.02,
        reason="Stages have to be balanced, checkpoints depend on them, and every stage fails alone.",
        is_due=lambda plan: plan.layout.pp > 1,
    ),
    Price(
        name="a pipeline between GPUs that share fast links",
        gain_fraction=0.02,
        reason="Data and tensor parallelism run at full speed there, without a bubble.",
        is_due=lambda plan: _shares_fast_links(plan) & (plan.layout.pp > 1),
    ),
    Price(
        name="more than four pipeline stages",
        gain_fraction=0.02,
        reason="Every stage waits for its neighbours, whose arrival nobody predicts; published layouts take the fewest "
        "stages that hold the model.",
        is_due=lambda plan: plan.layout.pp > 4,
    ),
    Price(
        name="more than sixteen pipeline stages",
        gain_fraction=0.06,
        reason="Llama 3 (16,384 GPUs) and DeepSeek-V3 (2,048) trained with sixteen, and so did the deepest of NVIDIA's "
        "353 published runs of 2025 and 2026.",
        is_due=lambda plan: plan.layout.pp > 16,
    ),
    Price(
        name="a pipeline under adapters",
        gain_fraction=0.10,
        reason="Usual trainers of adapters (TRL, axolotl, torchtune) have none: few people ever ran the two together. "
        "Megatron's do; torch's measured pipelines took longer than predicted.",
        is_due=_pipes_adapters,
        is_untried=True,
    ),
    Price(
        name="interleaved chunks",
        gain_fraction=0.03,
        reason="They gain less in published sweeps than is predicted, and micro-batches have to come in rounds.",
        is_due=lambda plan: plan.layout.vpp > 1,
    ),
    Price(
        name="a rare schedule",
        gain_fraction=0.035,
        reason="Few people run split backward passes or V-shaped pipelines, and few can help.",
        is_due=lambda plan: (plan.layout.pp > 1) & negated(is_among(plan.layout.schedule, USUAL_SCHEDULES)),
    ),
    Price(
        name="uneven stages",
        gain_fraction=0.03,
        reason="They are tuned to one prediction of the head's time, and checkpoints remember them.",
        is_due=_is_uneven,
    ),
    Price(
        name="recomputation of part of the layers",
        gain_fraction=0.03,
        reason="The count is tuned to one prediction of the memory, and changes with every length and batch.",
        is_due=_recomputes_part,
    ),
    Price(
        name="stages that differ by more than one layer",
        gain_fraction=0.03,
        reason="Published splits take a layer off the first and the last stage; engines have a flag for that and none "
        "for more.",
        is_due=_is_uneven_by_more_than_one,
    ),
    Price(
        name="context parallelism",
        gain_fraction=0.03,
        reason="Ring attention, positions and losses of cut sequences need care that other axes do not.",
        is_due=lambda plan: plan.layout.cp > 1,
    ),
    Price(
        name=f"context parallelism below {SHORT_SEQUENCE_TOKENS:,} tokens",
        gain_fraction=0.05,
        reason="Such sequences fit a GPU; tensor parallelism inside the server divides them as well.",
        is_due=_cuts_short_sequences,
    ),
    Price(
        name="short sequences in more than two parts",
        gain_fraction=0.04,
        reason="The parts become too small for their exchange to hide behind attention.",
        is_due=lambda plan: _cuts_short_sequences(plan) & (plan.layout.cp > 2),
    ),
    Price(
        name="short sequences cut before tensor parallelism fills the server",
        gain_fraction=0.04,
        reason="The links of a server are for tensor parallelism first, which divides weights and activations alike.",
        is_due=_cuts_before_matrices,
    ),
    Price(
        name="replicas inside a server",
        gain_fraction=0.01,
        reason="Sharding over the whole server needs less memory and one group less.",
        is_due=_shards_within_servers,
    ),
    Price(
        name="shard groups that straddle servers",
        gain_fraction=0.02,
        reason="Their slowest link carries uneven loads.",
        is_due=straddles_nodes,
    ),
    Price(
        name="states divided beyond the engine's distributed optimizer",
        gain_fraction=0.035,
        reason="Megatron's and HAI-LLM's users divide the optimizer states (ZeRO-1); gradients and weights divided are "
        "another code path (Megatron-FSDP), which few of them run.",
        is_due=_divides_like_another_engine,
    ),
    Price(
        name="activations on the host",
        gain_fraction=0.33,
        reason="Copies over PCIe are what predictions know least; recomputing everything needs nothing of the host and "
        "costs a third of a step.",
        is_due=lambda plan: plan.recipe.activation_offload,
        is_untried=True,
    ),
    Price(
        name="optimizer states on the host",
        gain_fraction=0.33,
        reason="The update waits for the host's memory and CPUs, which differ from server to server; recomputation "
        "makes room first.",
        is_due=lambda plan: is_among(plan.recipe.offload, ("optimizer", "parameters", "nvme")),
        is_untried=True,
    ),
    Price(
        name="parameters on the host",
        gain_fraction=0.05,
        reason="Every micro-batch then waits for copies, not only the update.",
        is_due=lambda plan: is_among(plan.recipe.offload, ("parameters", "nvme")),
    ),
    Price(
        name="states on drives",
        gain_fraction=0.05,
        reason="Drives are slower than the host, and wear out.",
        is_due=lambda plan: plan.recipe.offload == "nvme",
    ),
)


def price_fraction(plan: Plan) -> float:
    """Sum of the prices of a plan's steps beyond the canonical layout, as a share of step time; of columns, a column.

    >>> from shardwise.catalog import read_cluster
    >>> from shardwise.families import read_model
    >>> from shardwise.layout import Layout
    >>> from shardwise.recipe import Recipe
    >>> recipe, model, cluster = Recipe(seq_len=8192), read_model("llama-3.1-8b"), read_cluster("2xdgx-h100")
    >>> layout = Layout(tp=8, pp=2)
    >>> price_fraction(Plan(model=model, cluster=cluster, recipe=recipe, layout=layout, engine="megatron"))
    0.04
    """
    return sum(given(price.is_due(plan), price.gain_fraction) for price in PRICES)


def num_untried(plan: Plan) -> int:
    """Number of the plan's steps that nearly nobody publishes runs of."""
    return sum(bool(price.is_due(plan)) for price in PRICES if price.is_untried)


def charged(plan: Plan, *, beyond: Plan) -> Sequence[Price]:
    """The steps that a plan takes and another does not, the dearest first."""
    due = [price for price in PRICES if price.is_due(plan) and not price.is_due(beyond)]
    return sorted(due, key=lambda price: -price.gain_fraction)


def asked_fraction(plan: Plan, *, beyond: Plan) -> float:
    """Share of the step time of the plan ``beyond`` that a plan has to save to be recommended instead of it.

    Steps are compared with their prices added, so that a plan gains enough where ``step x (1 + its price)`` is below
    that of the other. Of a plan that takes no more untried steps, no more is asked than what a recommended plan may
    lose.
    """
    ratio = (1 + price_fraction(plan)) / (1 + price_fraction(beyond))
    if num_untried(plan) <= num_untried(beyond):
        ratio = min(ratio, 1 + MAX_LOSS_FRACTION)
    return max(0.0, 1 - 1 / ratio)
