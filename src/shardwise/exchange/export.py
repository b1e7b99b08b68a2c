"""A plan as the files of another tool, from the table that reads them; what does not read back equal is refused."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from shardwise.engines.table import EngineName, engine_profile
from shardwise.errors import PlanError
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.facts import REPEATED_PREFIXES, FactValue
from shardwise.exchange.megatron_model import unsaid_of_model
from shardwise.exchange.names import Tool
from shardwise.exchange.reading import planned_values, read_parsed
from shardwise.exchange.recipe_text import RECIPE_FUNCTION, RECIPE_MODULE, recipe_text
from shardwise.exchange.spelling import (
    accelerate_keys,
    argument_keys,
    deepspeed_keys,
    megatron_keys,
    recipe_keys,
    torchtitan_keys,
)
from shardwise.exchange.starting import RENDEZVOUS_PORT, script_head
from shardwise.exchange.tools.table import TOOLS
from shardwise.fields import Value
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.rules.changes import LAYOUT_FIELDS, RECIPE_FIELDS, apply_changes, complete, describe_changes
from shardwise.rules.check import find_errors
from shardwise.rules.defaults import fill_plan
from shardwise.rules.refusal import Changes
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.step.expert_exchange import expert_exchange
from shardwise.step.layer_placement import chunks_per_stage
from shardwise.step.loss import has_loss_kernels
from shardwise.units import format_gib, format_percent

__all__ = ["RESUMED", "TARGETS", "InexpressibleError", "Target", "TextFile", "export_plan", "kernel_note", "model_note"]

Keys = Mapping[str, FactValue]
ENVIRONMENT = "ENVIRONMENT"
"""A placeholder: the folder of the tool's virtual environment; one that does not exist changes nothing."""
TRL_PROGRAM = "-m trl.scripts.sft"
NEWEST = 'NEWEST="$(ls -d CHECKPOINTS/checkpoint-* 2>/dev/null | sort -V | tail -n 1)"'
RESUMED = '${NEWEST:+--resume_from_checkpoint "$NEWEST"}'
"""Trainers go on from a checkpoint that they are told, and refuse to where there is none yet."""
ARGUMENTS = f"--config training_arguments.yaml {RESUMED}"
MAX_OBSTACLES = 12
"""Obstacles after which no nearer plan is looked for."""
SAME_STEP_FRACTION = 0.0005
NOTABLE_FRACTION = 0.01
"""A share of the memory from which it is said that a tool needs another amount than was predicted."""
NOT_OF_A_TARGET = frozenset(("tokens", "convention", "mean_document_len", "routing_imbalance_ratio", "compile"))
"""Fields that say what is predicted, not what a tool is told; and ``compile``, where the engine has no switch."""

ADAPTER_FIELDS = ("lora_rank", "lora_alpha", "use_rslora", "lora_dropout_fraction")
"""Fields of adapters that say nothing where a plan trains none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """One file of an export."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tool that plans are written for."""

    name: str
    engine: EngineName
    tools: tuple[str, ...]
    """The name of the tool whose tables give the keys of the exported files."""
    write: Callable[[Plan], tuple[TextFile, ...]]
    leaves_out: Callable[[ModelSpec], tuple[str, ...]] = lambda _model: ()
    """Parts of a model that no option of the files says, in words."""

    @property
    def checked_against(self) -> str:
        """The versions of the tools that the names were checked against."""
        return ", ".join(f"{TOOLS[name].title} {TOOLS[name].version}" for name in self.tools)


class InexpressibleError(PlanError):
    """A plan that a target cannot say; ``nearest`` is one that it can."""

    def __init__(self, message: str, *, code: str, fix: str, nearest: Plan) -> None:
        super().__init__(message, code=code, fix=fix)
        self.nearest = nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Obstacle:
    """The reason why a target cannot run a plan, and the changes after which it can."""

    message: str
    code: str
    changes: Changes


def export_plan(plan: Plan, *, to: str) -> tuple[TextFile, ...]:
    """The files that make a tool run the plan.

    Raises:
        InexpressibleError: the target's engine cannot run the plan, or the target has no words for a field.
    """
    target = TARGETS[to]
    nearest = same_work(replace(plan, engine=target.engine))
    first = found = _files_or_obstacle(nearest, target)
    if not isinstance(first, _Obstacle):
        return first
    changes: dict[str, Value] = {}
    for _ in range(MAX_OBSTACLES):
        if not isinstance(found, _Obstacle):
            break
        changes |= dict(found.changes)
        nearest = same_work(apply_changes(nearest, found.changes))
        found = _files_or_obstacle(nearest, target)
    fix = describe_changes(tuple(changes.items()))
    raise InexpressibleError(first.message, code=first.code, fix=fix, nearest=nearest)


def _files_or_obstacle(plan: Plan, target: Target) -> "tuple[TextFile, ...] | _Obstacle":
    refusals = find_errors(plan)
    if refusals:
        first = refusals[0]
        return _Obstacle(message=f"{target.name}: {first.message}", code=first.rule, changes=first.neighbour)
    files = target.write(plan)
    lost = _lost(plan, _read_back(plan, files), target)
    if not lost:
        return files
    field = lost[0][0]
    return _Obstacle(
        message=f"{target.name} ({target.checked_against}) cannot say {field}={_value_of(plan, field)}",
        code="export-inexpressible",
        changes=complete(plan, tuple(lost)),
    )


def same_work(plan: Plan) -> Plan:
    """The plan as its import says it: idle ranks are replicas, V-shaped pipelines have 2 chunks, losses a kernel.

    The exchange of experts that a plan leaves to its engine is said, as the tool's own default may be another:
    ``--moe-token-dispatcher-type`` of Megatron-LM is ``allgather``.
    """
    layout = plan.layout
    if plan.model.is_moe and layout.ep > 1:
        layout = replace(layout, expert_exchange=expert_exchange(plan))
        plan = replace(plan, layout=layout)
    if has_loss_kernels(engine_profile(plan.engine)) and plan.recipe.fused_loss is not False:
        kernel = plan.recipe.fused_loss_kernel or "native"
        plan = replace(plan, recipe=replace(plan.recipe, fused_loss=True, fused_loss_kernel=kernel))
    if layout.pp > 1 and SCHEDULE_KINDS[layout.schedule].doubles_chunks:
        layout = replace(layout, vpp=chunks_per_stage(layout))
        plan = replace(plan, layout=layout)
    if layout.zero_stage > 0 or layout.dp_shard == 1:
        return plan
    return replace(plan, layout=replace(layout, dp_replicate=layout.data_parallel_size, dp_shard=1))


def kernel_note(plan: Plan, target: Target) -> str:
    """A sentence where the tool's kernel for a loss that a plan leaves open needs other memory than was predicted, with
    what the loss needs that is not fused."""
    written = same_work(plan)
    kernel = written.recipe.fused_loss_kernel
    if kernel == plan.recipe.fused_loss_kernel:
        return ""
    now, then = predict(plan), predict(written)
    now_bytes, then_bytes = now.memory.needed_bytes, then.memory.needed_bytes
    if abs(then_bytes - now_bytes) < NOTABLE_FRACTION * now_bytes:
        return ""
    unfused = predict(replace(plan, recipe=replace(plan.recipe, fused_loss=False)))
    longer = unfused.time.step_s / then.time.step_s - 1
    apart = f"{format_percent(abs(longer))} {'longer' if longer > 0 else 'shorter'}"
    said = f"a step {'as long' if abs(longer) < SAME_STEP_FRACTION else apart}"
    return (
        f"{target.name} runs fused_loss_kernel={kernel}, which the plan leaves open: {format_gib(then_bytes)} on the "
        f"fullest GPU ({then.fit}), where {format_gib(now_bytes)} were predicted ({now.fit}); --no-fused-loss needs "
        f"{format_gib(unfused.memory.needed_bytes)} ({unfused.fit}) and {said}"
    )


def model_note(plan: Plan, target: Target) -> str:
    """A sentence where no option of the exported files says a part of the model."""
    unsaid = target.leaves_out(plan.model)
    return f"{target.name} is not told of {', '.join(unsaid)}: add what your version has for them" if unsaid else ""


def _read_back(plan: Plan, files: tuple[TextFile, ...]) -> Plan:
    """The plan that the files mean, for the same model and cluster."""
    reading = read_parsed([document for file in files for document in parse_documents(file.text, name=file.name)])
    values = planned_values(reading)
    return fill_plan(
        {"seq_len": plan.recipe.seq_len, **{name: value for name, value in values.items() if name in RECIPE_FIELDS}},
        {name: value for name, value in values.items() if name in LAYOUT_FIELDS},
        model=plan.model,
        cluster=plan.cluster,
        engine=plan.engine,
    )


def _lost(plan: Plan, back: Plan, target: Target) -> list[tuple[str, Value]]:
    """Fields that did not come back, each with the value that came; what a plan leaves to its engine may be said."""
    is_sharded = plan.layout.state_shard_size > 1
    idle = (
        set(NOT_OF_A_TARGET)
        | (set() if is_sharded else {"zero_stage"})
        | (set() if plan.layout.pp > 1 else {"schedule", "stage_layers"})
    )
    if max(plan.layout.zero_stage, back.layout.zero_stage) < 3 or not is_sharded:
        idle.add("reshard_after_forward")
    if plan.layout.ep == 1:
        idle.add("expert_exchange")
    if plan.recipe.recompute == "none":
        idle |= {"recompute_layers", "recompute_modules"}
    if plan.recipe.adapter == "none":
        idle |= {*ADAPTER_FIELDS, "lora_targets"}
    said = {name.field for tool in target.tools for name in TOOLS[tool].names}
    idle -= {"compile"} & said
    pairs: tuple[tuple[Layout | Recipe, Layout | Recipe], ...] = (
        (plan.layout, back.layout),
        (plan.recipe, back.recipe),
    )
    return [
        (one.name, getattr(theirs, one.name))
        for ours, theirs in pairs
        for one in fields(ours)
        if one.name not in idle
        and getattr(ours, one.name) is not None
        and getattr(ours, one.name) != getattr(theirs, one.name)
        and not (one.name == "global_batch_size" and plan.global_batch_size == back.global_batch_size)
    ]


def _value_of(plan: Plan, field: str) -> Value:
    value: Value = getattr(plan.layout if field in LAYOUT_FIELDS else plan.recipe, field)
    return value


def said_by(tool: Tool, plan: Plan, *, leave_out: frozenset[str] = frozenset()) -> dict[str, FactValue]:
    """The keys of a tool that say fields of a plan one by one; fields that it has no word for are left out."""
    records: tuple[Recipe | Layout, ...] = (plan.layout, plan.recipe)
    said: dict[str, FactValue] = {}
    for record in records:
        for one in fields(record):
            value = getattr(record, one.name)
            found = None if value is None or one.name in leave_out else tool.theirs(one.name, value)
            if found is not None:
                said[found[0]] = found[1]
    return said


def nested(keys: Keys) -> dict[str, object]:
    """Keys with dots as sections, with the prefix that some sections repeat."""
    tree: dict[str, object] = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        level = tree
        for section in sections:
            level = level.setdefault(section, {})  # type: ignore[assignment]
        prefix = REPEATED_PREFIXES.get(".".join(sections), "")
        level[prefix + name] = list(value) if isinstance(value, tuple) else value
    return tree


def _toml(keys: Keys) -> str:
    sections: dict[str, list[str]] = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        text = json.dumps(list(value) if isinstance(value, tuple) else value)
        sections.setdefault(section, []).append(f"{name} = {text}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())


def _yaml(keys: Keys) -> str:
    import yaml  # noqa: PLC0415 - only two targets write YAML

    text: str = yaml.safe_dump(nested(keys), sort_keys=False)
    return text


def _launch_line(plan: Plan, program: str, arguments: str, *, before: str = "") -> str:
    """The script that runs torchrun on one node; ``--launcher`` writes what starts it on every node."""
    num_nodes, node = plan.cluster.num_nodes, plan.cluster.node
    endpoint = f'--rdzv_endpoint "$HEAD_NODE:{RENDEZVOUS_PORT}" --rdzv_id "$RUN_ID"'
    meeting = f" --rdzv_backend c10d {endpoint}" if num_nodes > 1 else ""
    processes = "gpu" if plan.cluster.num_missing_gpus else node.gpus_per_node
    start = f"torchrun --nnodes {num_nodes} --nproc_per_node {processes}{meeting}"
    return f"{_script_head(plan)}{before}{start} {program} \\\n  {arguments}\n"


def _script_head(plan: Plan) -> str:
    """The head with the environment of the tool on the path, so that nobody has to activate it."""
    return f'{script_head(num_nodes=plan.cluster.num_nodes)}export PATH="{ENVIRONMENT}/bin:$PATH"\n'


def _write_torchtitan(plan: Plan) -> tuple[TextFile, ...]:
    keys = {**said_by(TOOLS["torchtitan"], plan), **torchtitan_keys(plan)}
    return (
        TextFile(name="torchtitan.toml", text=_toml({key: value for key, value in keys.items() if value is not None})),
        TextFile(name="launch.sh", text=_launch_line(plan, "-m torchtitan.train", "--job.config_file torchtitan.toml")),
    )


def _write_recipe(plan: Plan) -> tuple[TextFile, ...]:
    keys = {**said_by(TOOLS["torchtitan-recipe"], plan), **recipe_keys(plan)}
    arguments = f"--module {RECIPE_MODULE} --config {RECIPE_FUNCTION}"
    return (
        TextFile(name=f"{RECIPE_MODULE}.py", text=recipe_text(plan, keys)),
        TextFile(name="launch.sh", text=_launch_line(plan, "-m torchtitan.train", arguments)),
    )


def _write_megatron(plan: Plan) -> tuple[TextFile, ...]:
    keys = {**said_by(TOOLS["megatron"], plan), **megatron_keys(plan)}
    flags = [_flag(key, value) for key, value in keys.items() if value is not None and value is not False]
    # Its arguments are refused without this variable, before Blackwell; under Megatron FSDP they are refused with it.
    has_one_queue = plan.layout.tp * plan.layout.cp > 1 and plan.layout.zero_stage < 2
    variables = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" if has_one_queue else ""
    line = _launch_line(plan, "pretrain_gpt.py", " \\\n  ".join(flags), before=variables)
    return (TextFile(name="pretrain.sh", text=line),)


def _flag(key: str, value: FactValue) -> str:
    option = f"--{key.replace('_', '-')}"
    if value is True:
        return option
    words = value if isinstance(value, tuple) else (value,)
    return f"{option} {shlex.join(map(str, words))}"


def _write_arguments(plan: Plan, first: TextFile, extra: Keys, launch: str) -> tuple[TextFile, ...]:
    idle = () if plan.recipe.adapter != "none" else ADAPTER_FIELDS
    said = said_by(TOOLS["trl"], plan, leave_out=frozenset(("zero_stage", "lora_targets", *idle)))
    arguments = TextFile(name="training_arguments.yaml", text=_yaml({**said, **argument_keys(plan), **extra}))
    return (first, arguments, TextFile(name="launch.sh", text=launch))


def _write_deepspeed(plan: Plan) -> tuple[TextFile, ...]:
    whole = frozenset(name for name in ("tp", "cp") if getattr(plan.layout, name) == 1)
    keys = {**said_by(TOOLS["deepspeed"], plan, leave_out=whole | {"optimizer"}), **deepspeed_keys(plan)}
    first = TextFile(name="ds_config.json", text=json.dumps(nested(keys), indent=2) + "\n")
    return _write_arguments(
        plan, first, {"deepspeed": "ds_config.json"}, _launch_line(plan, TRL_PROGRAM, ARGUMENTS, before=f"{NEWEST}\n")
    )


def _write_accelerate(plan: Plan) -> tuple[TextFile, ...]:
    keys = {**said_by(TOOLS["accelerate"], plan, leave_out=frozenset(("zero_stage",))), **accelerate_keys(plan)}
    machines = ""
    if plan.cluster.num_nodes > 1:
        endpoint = f'--main_process_ip "$HEAD_NODE" --main_process_port {RENDEZVOUS_PORT}'
        machines = f' --machine_rank "$NODE_RANK" {endpoint}'
    start = f"accelerate launch --config_file accelerate.yaml{machines} \\\n  {TRL_PROGRAM} {ARGUMENTS}\n"
    line = f"{_script_head(plan)}{NEWEST}\n{start}"
    return _write_arguments(plan, TextFile(name="accelerate.yaml", text=_yaml(keys)), {}, line)


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "torchtitan": Target(name="torchtitan", engine="torchtitan", tools=("torchtitan",), write=_write_torchtitan),
        "torchtitan-recipe": Target(
            name="torchtitan-recipe", engine="torchtitan", tools=("torchtitan-recipe",), write=_write_recipe
        ),
        "megatron": Target(
            name="megatron",
            engine="megatron",
            tools=("megatron",),
            write=_write_megatron,
            leaves_out=unsaid_of_model,
        ),
        "deepspeed": Target(name="deepspeed", engine="deepspeed", tools=("deepspeed", "trl"), write=_write_deepspeed),
        "accelerate": Target(
            name="accelerate", engine="accelerate", tools=("accelerate", "trl"), write=_write_accelerate
        ),
    }
)
