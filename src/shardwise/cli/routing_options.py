"""The options of ``train`` that say how routers are taught to spread tokens over experts, and what is said of it."""

import argparse
from typing import get_args

from shardwise.ask.idle_options import IdleOption
from shardwise.cli.number_range import NumberRange, add_number
from shardwise.plan import Plan
from shardwise.train.job import ExpertLoad, RoutingSpec

__all__ = ["ROUTING_NUMBERS", "ROUTING_ROWS", "ROUTING_SYNONYMS", "add_routing_options", "given_routing"]

ROUTING_NUMBERS = {
    "--router-aux-loss-coef": NumberRange(min_value=0, is_whole=False),
    "--router-bias-update-rate": NumberRange(min_value=0, is_whole=False),
}
ROUTING_SYNONYMS = {
    "--moe-aux-loss-coeff": "--router-aux-loss-coef",
    "--aux-loss-alpha": "--router-aux-loss-coef",
    "--moe-router-bias-update-rate": "--router-bias-update-rate",
    "--load-balance-coeff": "--router-bias-update-rate",
    "--bias-update-speed": "--router-bias-update-rate",
}
"""Names of others: the first and the third are Megatron-LM's, the second is DeepSeek-V2's, the fourth is torchtitan's,
and the last is that of DeepSeek-V3's report."""
_LOSS_HELP = "times the routers' auxiliary loss (default: the config's where its output_router_logits is on, else 0)"
_BIAS_HELP = "what router biases move a step to even out the load, 0.001 in DeepSeek-V3 (default: 0)"
_LOAD_HELP = "load of experts in metrics: fullest over mean, or counts too (default: ratio beside a loss or rate)"


def _routes_nothing(_: argparse.Namespace, plan: Plan) -> bool:
    return not plan.model.is_moe


ROUTING_ROWS = tuple(
    IdleOption(option=option, is_idle=_routes_nothing, beside="in a model without routed experts")
    for option in (*ROUTING_NUMBERS, "--expert-load")
)


def add_routing_options(group: "argparse._ArgumentGroup") -> None:
    """Add the options about routers."""
    numbers = ROUTING_NUMBERS
    add_number(group, numbers, "--router-aux-loss-coef", default=None, metavar="RATIO", text=_LOSS_HELP)
    add_number(group, numbers, "--router-bias-update-rate", default=None, metavar="RATE", text=_BIAS_HELP)
    group.add_argument("--expert-load", choices=get_args(ExpertLoad), help=_LOAD_HELP)


def given_routing(arguments: argparse.Namespace) -> RoutingSpec:
    """The routing settings that the options ask for."""
    return RoutingSpec(
        aux_loss_ratio=arguments.router_aux_loss_coef,
        bias_update_ratio=arguments.router_bias_update_rate or 0.0,
        expert_load=arguments.expert_load,
    )
