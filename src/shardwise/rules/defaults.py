"""What a plan file may leave open, and how each gap is filled, once more where a fix was typed into the file."""

from collections.abc import Mapping
from dataclasses import fields, replace

from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES, EngineName
from shardwise.layout import REST, Layout, ZeroStage
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import ADAPTER_SEQ_LEN, Precision, Recipe
from shardwise.rules.changes import apply_changes, current_value, merge
from shardwise.rules.refusal import Changes, Value
from shardwise.schedules.table import CHUNKED_SCHEDULE, SPLITTING_SCHEDULES

SEQ_LEN_STEP = 64
"""RoBERTa's table has 514 rows for 512 tokens."""
FILLED = frozenset(
    (
        *("precision", "compile"),
        *("dp_replicate", "dp_shard", "zero_stage", "sequence_parallel", "expert_tp", "schedule"),
        "reshard_after_forward",
    )
)
"""Fields whose value follows from others where a plan file leaves them open."""
ADAPTER_CHOICES = (
    ("lora_rank", "between the 8 and the 64 that recipes take"),
    ("lora_targets", "as the LoRA paper adapts; that of QLoRA adapts all-linear"),
)
"""Fields of an adapter that a default answers, and why (arXiv:2106.09685, section 4.2; arXiv:2305.14314, section 4)."""


def fill_plan(
    recipe_given: Mapping[str, Value],
    layout_given: Mapping[str, Value],
    *,
    model: ModelSpec,
    cluster: Cluster,
    engine: EngineName,
    fallback_seq_len: int | None = None,
) -> Plan:
    """The plan whose recipe and layout were given as far as somebody wrote them."""
    stated = {name: value for name, value in layout_given.items() if not (name == "dp_shard" and value == REST)}
    stated, stage_notes = _without_fsdp_stage_2(stated, engine)
    recipe, recipe_notes = _fill_recipe(
        recipe_given,
        model=model,
        cluster=cluster,
        engine=engine,
        schedule=stated.get("schedule") if stated.get("pp", 1) != 1 else None,
        fallback_seq_len=fallback_seq_len,
    )
    layout, layout_notes = _fill_layout(stated, model=model, cluster=cluster, recipe=recipe, engine=engine)
    return Plan(
        model=model,
        cluster=cluster,
        recipe=recipe,
        layout=layout,
        engine=engine,
        assumptions=recipe_notes + layout_notes + stage_notes,
        open_fields=FILLED.difference(recipe_given, stated),
    )


def fill_again(plan: Plan, changes: Changes) -> Plan:
    """The plan that its file gives once ``changes`` are typed into it; what the file leaves open may change, too."""
    changed = apply_changes(plan, changes)
    open_fields = plan.open_fields.difference(name for name, _ in changes)
    recipe_given, layout_given = (
        {field.name: getattr(record, field.name) for field in fields(record) if field.name not in open_fields}
        for record in (changed.recipe, changed.layout)
    )
    return fill_plan(recipe_given, layout_given, model=plan.model, cluster=plan.cluster, engine=changed.engine)


def type_changes(plan: Plan, changes: Changes, following: Changes = ()) -> tuple[Changes, Plan]:
    """The fields that a person types into a plan's file to make ``changes``, and the plan that the file then describes.

    Changes that change nothing are left out. A global batch that would follow the layout is written down instead, so
    that the same is trained.

    Args:
        plan: as its file was read, or changed since; then the file is taken to state every field.
        changes: to be made.
        following: values of fields that depend on ``changes``; a field that the file leaves open is filled instead.
    """
    open_fields = plan.open_fields if fill_again(plan, ()) == plan else frozenset()
    plan = replace(plan, open_fields=open_fields)
    wanted = merge(changes, tuple(change for change in following if change[0] not in open_fields))
    typed = tuple(change for change in wanted if change[1] != current_value(plan, change[0]))
    filled = fill_again(plan, typed)
    typed = merge(typed, tuple(change for change in wanted if change[1] != current_value(filled, change[0])))
    filled = fill_again(plan, typed)
    if filled.recipe.global_batch_size is None and filled.global_batch_size != plan.global_batch_size:
        typed = merge(typed, (("global_batch_size", plan.global_batch_size),))
        filled = fill_again(plan, typed)
    return typed, filled


def _fill_recipe(
    given: Mapping[str, Value],
    *,
    model: ModelSpec,
    cluster: Cluster,
    engine: EngineName,
    schedule: Value | None,
    fallback_seq_len: int | None,
) -> tuple[Recipe, tuple[str, ...]]:
    """The whole recipe, and a sentence for every choice that was left open and is not the same everywhere.

    ``seq_len`` is the fallback, shorter where adapters are trained, or as many positions as the model was made for when
    they are fewer.

    ``precision`` is bf16-mixed unless the GPU multiplies fp16 only (V100, T4), or bf16 more slowly than fp32 (a CPU
    without units for it). ``compile`` is what the engine does when
    nobody asks: the native engine compiles, the others do not. A pipeline schedule that splits the backward pass is
    left uncompiled, as torch refuses the two together.
    """
    filled, notes = dict(given), []
    if "seq_len" not in given and fallback_seq_len is not None:
        trains_adapters = given.get("adapter", "none") != "none"
        longest = min(fallback_seq_len, ADAPTER_SEQ_LEN) if trains_adapters else fallback_seq_len
        filled["seq_len"] = _seq_len_within(model, longest)
        if filled["seq_len"] != longest:
            notes.append(f"seq_len={filled['seq_len']}: {model.name} has {model.max_position_embeddings} positions")
        elif trains_adapters:
            notes.append(f"seq_len={longest}: recipes for adapters cut examples off there")
    if "precision" not in given and _lacks_bf16(cluster):
        filled["precision"] = _precision_without_bf16(engine)
        notes.append(f"precision={filled['precision']}: {cluster.gpu.name} has no bf16 matrix unit")
    elif "precision" not in given and _slows_in_bf16(cluster) and "fp32" in ENGINES[engine].precisions:
        filled["precision"] = "fp32"
        notes.append(f"precision=fp32: {cluster.gpu.name} multiplies bf16 more slowly than fp32")
    if given.get("adapter", "none") != "none":
        notes += [f"{name}={_default(name)}: {reason}" for name, reason in ADAPTER_CHOICES if name not in given]
    if "compile" not in given:
        filled["compile"], reason = _compiles(engine, schedule)
        notes.append(f"compile={str(filled['compile']).lower()}: {reason}")
    return Recipe(**filled), tuple(notes)  # type: ignore[arg-type]


def _default(name: str) -> object:
    return next(field.default for field in fields(Recipe) if field.name == name)


def _compiles(engine: EngineName, schedule: Value | None) -> tuple[bool, str]:
    if ENGINES[engine].compiles and schedule in SPLITTING_SCHEDULES:
        return False, f"torch does not split the backward pass of compiled blocks, which {schedule} asks for"
    return ENGINES[engine].compiles, f"what {engine} does unless it is told otherwise"


def recipe_assumptions(plan: Plan) -> tuple[str, ...]:
    """The sentences of a plan about choices of its recipe that were left open; a search keeps these and no others."""
    names = {field.name for field in fields(Recipe)}
    return tuple(sentence for sentence in plan.assumptions if sentence.partition("=")[0] in names)


def _seq_len_within(model: ModelSpec, longest: int) -> int:
    """The longest usual sequence for which a model has positions; rows set aside for padding are not counted on."""
    positions = model.max_position_embeddings
    if not 0 < positions < longest:
        return longest
    return positions // SEQ_LEN_STEP * SEQ_LEN_STEP or positions


def _lacks_bf16(cluster: Cluster) -> bool:
    return cluster.gpu.peak_flop_per_s("bf16") == 0 and cluster.gpu.peak_flop_per_s("fp16") > 0


def _slows_in_bf16(cluster: Cluster) -> bool:
    return 0 < cluster.gpu.peak_flop_per_s("bf16") < cluster.gpu.peak_flop_per_s("fp32")


def _precision_without_bf16(engine: EngineName) -> Precision:
    return "fp16-mixed" if "fp16-mixed" in ENGINES[engine].precisions else "fp32"


def _fill_layout(
    stated: dict[str, Value], *, model: ModelSpec, cluster: Cluster, recipe: Recipe, engine: EngineName
) -> tuple[Layout, tuple[str, ...]]:
    """The whole layout, and a sentence for every choice that the plan file left open.

    ``dp_shard`` takes what is left of the world. ``zero_stage`` is what the engine is mostly used with: 3 for FSDP, 1
    for Megatron's distributed optimizer, 2 for DeepSpeed (1 under a pipeline, 3 to offload parameters), 0 without
    ranks to divide over. ``sequence_parallel`` and ``expert_tp`` follow ``tp``. Parameters stay gathered between
    forward and backward under a pipeline, as in torchtitan.
    """
    layout = Layout(**stated)  # type: ignore[arg-type]
    notes: list[str] = []
    layout = _fill_data_parallel(layout, stated, cluster, notes)
    layout = _fill_zero_stage(layout, stated, recipe, engine, notes)
    layout = _fill_tensor_parallel(layout, stated, model, recipe, engine, notes)
    layout = _fill_pipeline(layout, stated, engine, notes)
    return layout, tuple(notes)


def _without_fsdp_stage_2(stated: dict[str, Value], engine: EngineName) -> tuple[dict[str, Value], tuple[str, ...]]:
    """What a file says of the layout, with SHARD_GRAD_OP, which FSDP's users call ZeRO-2, in the fields it stands for.

    Both fields then count as stated, so that filling the plan again leaves them as they are.
    """
    offered = ENGINES[engine].zero_stages
    if stated.get("zero_stage") != 2 or 2 in offered or 3 not in offered or "reshard_after_forward" in stated:
        return stated, ()
    note = f"zero_stage=2 of {engine} is zero_stage=3 with reshard_after_forward=false"
    return {**stated, "zero_stage": 3, "reshard_after_forward": False}, (note,)


def _fill_data_parallel(layout: Layout, stated: dict[str, Value], cluster: Cluster, notes: list[str]) -> Layout:
    if "dp_shard" in stated:
        return layout
    others = layout.world_size // layout.dp_shard
    rest = max(1, cluster.num_gpus // others)
    axis = "dp_replicate" if stated.get("zero_stage") == 0 and "dp_replicate" not in stated else "dp_shard"
    if rest > 1:
        notes.append(f"{axis}={rest}: what is left of {cluster.num_gpus} GPUs")
    return replace(layout, dp_replicate=rest) if axis == "dp_replicate" else replace(layout, dp_shard=rest)


def default_zero_stage(*, layout: Layout, recipe: Recipe, engine: EngineName) -> ZeroStage:
    """The ZeRO stage of a plan that names none."""
    facts = ENGINES[engine]
    if facts.host_zero_stage is not None and recipe.offload in ("parameters", "nvme"):
        return facts.host_zero_stage
    if facts.pipeline_zero_stage is not None and layout.pp > 1:
        return facts.pipeline_zero_stage
    if layout.state_shard_size == 1 and recipe.offload == "none":
        return 0
    return facts.default_zero_stage


def _fill_zero_stage(
    layout: Layout, stated: dict[str, Value], recipe: Recipe, engine: EngineName, notes: list[str]
) -> Layout:
    if "zero_stage" in stated:
        return layout
    stage = default_zero_stage(layout=layout, recipe=recipe, engine=engine)
    if layout.state_shard_size > 1:
        notes.append(f"zero_stage={stage}: what {engine} is mostly used with")
    return replace(layout, zero_stage=stage)


def _fill_tensor_parallel(
    layout: Layout, stated: dict[str, Value], model: ModelSpec, recipe: Recipe, engine: EngineName, notes: list[str]
) -> Layout:
    if layout.tp == 1:
        return layout
    divides = recipe.seq_len % (layout.cp * layout.tp) == 0
    if "sequence_parallel" not in stated and ENGINES[engine].has_sequence_parallel and divides:
        layout = replace(layout, sequence_parallel=True)
        notes.append(f"sequence_parallel=true: {engine} divides norms and residuals over tp={layout.tp}")
    if "expert_tp" not in stated and model.is_moe and layout.ep == 1 and not ENGINES[engine].keeps_experts_whole:
        layout = replace(layout, expert_tp=layout.tp)
        notes.append(f"expert_tp={layout.tp}: without ep, experts are divided over tp")
    return layout


def _fill_pipeline(layout: Layout, stated: dict[str, Value], engine: EngineName, notes: list[str]) -> Layout:
    if layout.pp == 1:
        return layout
    if "schedule" not in stated and layout.vpp > 1:
        layout = replace(layout, schedule=CHUNKED_SCHEDULE)
        notes.append(f"schedule={CHUNKED_SCHEDULE}: {layout.vpp} chunks a stage")
    if "reshard_after_forward" not in stated and ENGINES[engine].runs_torch_pipelines and layout.zero_stage == 3:
        layout = replace(layout, reshard_after_forward=False)
        notes.append("reshard_after_forward=false: under a pipeline gathering again for every micro-batch costs more")
    return layout
