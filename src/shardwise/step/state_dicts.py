"""Memory that loading the weights and saving a checkpoint take beside the states: whole state dicts, on GPU or host."""

from collections.abc import Iterator

from shardwise.columns import largest
from shardwise.step.inventory import Tensor, present
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.states import frozen_bytes, unit_states
from shardwise.units import Bytes


def state_dict_tensors(context: StageContext) -> Iterator[Tensor]:
    """Whole weights beside the divided ones while they are loaded or saved; nothing where every rank holds all anyway.

    On the GPU every rank makes, or gathers, all of them. On their way to or from the host one unit is whole at a time.

    Source: torch ``distributed/fsdp/_state_dict_utils.py`` (``_full_post_state_dict_hook``),
        ``distributed/_state_dict_utils.py`` (``_gather_state_dict``).
    """
    recipe, timeline = context.plan.recipe, context.timeline
    divided = context.gathers_parameters & (context.plan.layout.state_shard_size > 1)
    for asked, name, moment, units_of in (
        (recipe.load_state_dict, "weights before they are divided", 0, _loaded),
        (recipe.save_state_dict, "gathered state dict", timeline.last, _saved),
    ):
        if asked != "sharded":
            units = units_of(context)
            num_bytes = (
                sum(count * one for count, one in units) if asked == "full" else largest(one for _, one in units)
            )
            whole = Tensor(
                name=name, component="gathered_parameters", num_bytes=num_bytes, first_use=moment, last_use=moment
            )
            yield from present(divided, (whole,))


def load_host_bytes(context: StageContext) -> Bytes:
    """Host bytes of every rank that reads the whole weights there before it takes its part."""
    if context.plan.recipe.load_state_dict != "full-on-host":
        return 0
    return sum(count * one for count, one in _loaded(context))


def save_host_bytes(context: StageContext) -> Bytes:
    """Host bytes of the one rank that gathers weights and optimizer states to save them."""
    if context.plan.recipe.save_state_dict != "full-on-host":
        return 0
    weights = sum(count * one for count, one in _saved(context))
    return weights + sum(unit.count * _optimizer(context, unit) for unit in context.held_units)


def _saved(context: StageContext) -> list[tuple[int, Bytes]]:
    """Number of each unit, and bytes of what is trained of one: all of its weights, or its adapter."""
    whole = context.states.weight_bytes * context.plan.layout.tp
    return [(unit.count, context.trained(unit).full * whole) for unit in context.held_units]


def _loaded(context: StageContext) -> list[tuple[int, Bytes]]:
    """Number of each unit, and bytes of all its weights as they are held."""
    if not context.has_adapter:
        return _saved(context)
    pairs = zip(_saved(context), context.held_units, strict=True)
    return [(count, trained + _frozen(context, unit)) for (count, trained), unit in pairs]


def _frozen(context: StageContext, unit: Unit) -> Bytes:
    recipe = context.plan.recipe
    is_packed = recipe.adapter == "qlora" and unit.is_block
    base = frozen_bytes(unit.base, recipe=recipe, zero_stage=0, is_quantised=is_packed)
    return base * context.plan.layout.tp


def _optimizer(context: StageContext, unit: Unit) -> Bytes:
    """Master weights and moments of one unit, undivided."""
    held = context.trained(unit)
    states = unit_states(
        held,
        states=context.states,
        recipe=context.plan.recipe,
        zero_stage=0,
        is_hidden_block=unit.is_block,
        matrices=held.matrices,
    )
    return (states.master + states.moments) * context.plan.layout.tp
