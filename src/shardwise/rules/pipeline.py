"""Rules about pipeline stages: how many layers there are to divide, and how chunks and schedules go together."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.rules.degrees import most_chunks, nearest_first, valid_pp_degrees
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.rules.stages import (
    placed_layers,
    stage_layers_for_vpp,
    truncated_layers,
)
from shardwise.schedules.table import CHUNKED_SCHEDULE, DEFAULT_SCHEDULE, SCHEDULE_KINDS
from shardwise.step.layer_placement import chunks_per_stage, num_chunks


def _breaks_layers(plan: Plan) -> bool:
    la = plan.layout
    return la.pp > 1 and num_chunks(la) > most_chunks(plan.model)


def _layers_message(plan: Plan) -> str:
    la = plan.layout
    return (
        f"pp={la.pp} with {chunks_per_stage(la)} chunk(s) a stage makes {num_chunks(la)} chunks, but "
        f"{plan.model.name} has {plan.model.num_hidden_layers} layers"
    )


def _pp_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    degrees = valid_pp_degrees(plan.model, chunks_per_stage=chunks_per_stage(la))
    for pp in nearest_first(degrees, la.pp):
        if pp != la.pp and plan.cluster.num_gpus % pp == 0:
            yield (("pp", pp),)
    yield (("pp", 1), ("vpp", 1))


def _layers_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    most = most_chunks(plan.model) // la.pp
    if most >= 2 and SCHEDULE_KINDS[la.schedule].least_chunks > 1:
        yield (("vpp", most),)
    if most >= 1:
        yield (("vpp", 1), ("schedule", DEFAULT_SCHEDULE))
    yield from _pp_candidates(plan)


def _breaks_stage_layers(plan: Plan) -> bool:
    la = plan.layout
    if la.stage_layers is None:
        return False
    return (
        len(la.stage_layers) != la.pp
        or sum(la.stage_layers) != plan.model.num_hidden_layers
        or min(la.stage_layers) < chunks_per_stage(la)
    )


def _stage_layers_message(plan: Plan) -> str:
    la = plan.layout
    counts = la.stage_layers or ()
    if len(counts) != la.pp:
        return f"stage_layers names {len(counts)} stages, but pp={la.pp}"
    total, wanted = sum(counts), plan.model.num_hidden_layers
    if total != wanted:
        return f"stage_layers sums to {total} layers, but {plan.model.name} has {wanted}"
    return f"a stage of {min(counts)} layers cannot be cut into {chunks_per_stage(la)} chunks"


def _breaks_vpp_schedule(plan: Plan) -> bool:
    la = plan.layout
    kind = SCHEDULE_KINDS[la.schedule]
    if la.vpp == 1 or la.pp == 1 or kind.least_chunks > 1:
        return False
    if kind.runs_in_rounds:
        return not ENGINES[plan.engine].runs_torch_pipelines
    return not (kind.doubles_chunks and la.vpp == 2)


def _vpp_schedule_message(plan: Plan) -> str:
    la = plan.layout
    if SCHEDULE_KINDS[la.schedule].doubles_chunks:
        return f"vpp={la.vpp} chunks a stage, but schedule {la.schedule} places exactly two"
    return f"vpp={la.vpp} chunks a stage need an interleaved schedule, but schedule is {la.schedule}"


def _vpp_schedule_candidates(plan: Plan) -> Iterable[Changes]:
    if not SCHEDULE_KINDS[plan.layout.schedule].doubles_chunks:
        yield (("schedule", CHUNKED_SCHEDULE),)
    yield (("vpp", 1),)


def _breaks_vpp_alone(plan: Plan) -> bool:
    return plan.layout.vpp > 1 and plan.layout.pp == 1


def _vpp_alone_message(plan: Plan) -> str:
    return f"vpp={plan.layout.vpp} cuts pipeline stages into chunks, but pp=1 is no pipeline"


def _breaks_interleaving(plan: Plan) -> bool:
    la = plan.layout
    if la.vpp > 1 or la.pp == 1:
        return False
    kind = SCHEDULE_KINDS[la.schedule]
    return kind.least_chunks > 1 or (kind.runs_in_rounds and ENGINES[plan.engine].refuses_one_chunk)


def _interleaving_message(plan: Plan) -> str:
    return f"schedule {plan.layout.schedule} runs at least two chunks on every stage, but vpp=1"


def _interleaving_candidates(plan: Plan) -> Iterable[Changes]:
    if 2 * plan.layout.pp <= most_chunks(plan.model):
        yield (("vpp", 2),)
    yield (("schedule", DEFAULT_SCHEDULE),)


def _is_uneven(plan: Plan) -> bool:
    la = plan.layout
    if la.pp == 1 or la.stage_layers is not None:
        return False
    chunks = num_chunks(la)
    return plan.model.num_hidden_layers % chunks != 0 and chunks <= most_chunks(plan.model)


def _breaks_uneven(plan: Plan) -> bool:
    return _is_uneven(plan)


def _uneven_message(plan: Plan) -> str:
    num_layers, la = plan.model.num_hidden_layers, plan.layout
    chunks = num_chunks(la)
    placed = ",".join(map(str, placed_layers(plan.model, la)))
    return (
        f"{num_layers} layers over {chunks} pipeline chunks leave {num_layers} % {chunks} = {num_layers % chunks}, so "
        f"stages hold {placed}; a tool that divides and drops the rest would train "
        f"{truncated_layers(num_layers=num_layers, pp=chunks)} layers"
    )


def _even_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    if la.vpp > 1:
        even = [vpp for vpp in range(1, 9) if plan.model.num_hidden_layers % (la.pp * vpp) == 0]
        for vpp in nearest_first(even, la.vpp):
            yield (("vpp", vpp),)
    yield (("stage_layers", placed_layers(plan.model, la)),)
    for pp in nearest_first(valid_pp_degrees(plan.model, chunks_per_stage=chunks_per_stage(la), even=True), la.pp):
        yield (("pp", pp),)
    yield (("pp", 1), ("vpp", 1))


def _breaks_stage_layers_over_vpp(plan: Plan) -> bool:
    la = plan.layout
    return la.stage_layers is not None and la.vpp > 1 and any(layers % la.vpp for layers in la.stage_layers)


def _stage_layers_over_vpp_message(plan: Plan) -> str:
    la = plan.layout
    uneven = next(layers for layers in la.stage_layers or () if layers % la.vpp)
    return (
        f"a stage of {uneven} layers is not a multiple of vpp={la.vpp}: Megatron's first- and last-stage flags cannot "
        f"express it, only --pipeline-model-parallel-layout can"
    )


def _stage_layers_over_vpp_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    divisible = stage_layers_for_vpp(num_layers=plan.model.num_hidden_layers, pp=la.pp, vpp=la.vpp)
    if divisible is not None:
        yield (("stage_layers", divisible),)
    yield (("vpp", 1), ("schedule", DEFAULT_SCHEDULE))


def _breaks_encoder_decoder(plan: Plan) -> bool:
    return plan.layout.pp > 1 and any(layer.cross_attention is not None for layer, _ in plan.model.layer_runs)


def _encoder_decoder_message(plan: Plan) -> str:
    return (
        f"pp={plan.layout.pp} cuts an encoder-decoder model: every decoder stage of {plan.model.name} also needs the "
        f"encoder's output"
    )


def _breaks_tied(plan: Plan) -> bool:
    return plan.layout.pp > 1 and plan.model.tie_word_embeddings and plan.model.has_head


def _tied_message(plan: Plan) -> str:
    return (
        f"pp={plan.layout.pp} puts the token table and the head of {plan.model.name} on different stages, but they are "
        f"one weight of {plan.model.num_embedding_params} parameters"
    )


NO_PIPELINE: tuple[Changes, ...] = (change(pp=1, vpp=1),)


RULES = (
    Rule(
        name="layout-layers-over-pp",
        why="Every chunk of every pipeline stage holds at least one layer, the embedding or the head.",
        source="arXiv:2401.10241, table 4; torchtitan distributed/pipeline_parallel.py",
        reads=("pp", "vpp", "schedule"),
        breaks=_breaks_layers,
        message=_layers_message,
        candidates=_layers_candidates,
    ),
    Rule(
        name="layout-stage-layers",
        why="A written placement names every stage, places every layer once, and gives each chunk at least one.",
        source="definition of stage_layers",
        reads=("stage_layers", "pp", "vpp", "schedule"),
        breaks=_breaks_stage_layers,
        message=_stage_layers_message,
        candidates=(
            change(stage_layers=None),
            change(stage_layers=None, vpp=1, schedule=DEFAULT_SCHEDULE),
            change(stage_layers=None, pp=1, vpp=1),
        ),
    ),
    Rule(
        name="layout-vpp-needs-interleaving",
        why="Several chunks on a stage are run by interleaving; other schedules know one chunk, or exactly two.",
        source="torch distributed/pipelining/schedules.py; torchtitan distributed/pipeline_parallel.py",
        reads=("pp", "vpp", "schedule"),
        breaks=_breaks_vpp_schedule,
        message=_vpp_schedule_message,
        candidates=_vpp_schedule_candidates,
    ),
    Rule(
        name="layout-vpp-without-pipeline",
        why="Chunks are pieces of pipeline stages.",
        source="Megatron-LM core/parallel_state.py",
        reads=("pp", "vpp"),
        breaks=_breaks_vpp_alone,
        message=_vpp_alone_message,
        candidates=(change(vpp=1),),
    ),
    Rule(
        name="layout-interleaving-needs-vpp",
        why="Interleaving one chunk with itself is plain 1F1B, and torch's multi-stage schedules ask for two.",
        source="torchtitan distributed/pipeline_parallel.py (multi-stage schedules need 2 stages per rank)",
        reads=("pp", "vpp", "schedule"),
        breaks=_breaks_interleaving,
        message=_interleaving_message,
        candidates=_interleaving_candidates,
    ),
    Rule(
        name="layout-uneven-stages",
        severity="warning",
        why="Layers that do not divide evenly are placed 15, 16, ..., 16, 15: the embedding and the head count as one "
        "layer each. A tool that divides and drops the rest trains a smaller model; Megatron takes such stages from "
        "--pipeline-model-parallel-layout.",
        source="arXiv:2407.21783, section 3.3.2; NVIDIA/Megatron-LM issue 1304",
        breaks=_breaks_uneven,
        message=_uneven_message,
        candidates=_even_candidates,
    ),
    Rule(
        name="engine-megatron-stage-layers-over-vpp",
        engines=("megatron",),
        severity="warning",
        why="Megatron divides a stage's layers evenly over its chunks unless the whole layout is written out.",
        source="NVIDIA-NeMo/Megatron-Bridge pull 5884",
        breaks=_breaks_stage_layers_over_vpp,
        message=_stage_layers_over_vpp_message,
        candidates=_stage_layers_over_vpp_candidates,
    ),
    Rule(
        name="layout-pipeline-over-encoder-decoder",
        severity="warning",
        why="A stage passes one tensor on; in an encoder-decoder model the encoder's output must travel along.",
        source="Raffel et al. 2019, arXiv:1910.10683 (cross-attention in every decoder block)",
        breaks=_breaks_encoder_decoder,
        message=_encoder_decoder_message,
        candidates=NO_PIPELINE,
    ),
    Rule(
        name="engine-torchtitan-tied-embeddings",
        engines=("torchtitan",),
        why="torchtitan refuses weight tying with pipeline parallelism: the two ends are separate modules.",
        source="torchtitan models/common/decoder.py",
        reads=("pp",),
        breaks=_breaks_tied,
        message=_tied_message,
        candidates=NO_PIPELINE,
    ),
    Rule(
        name="layout-tied-embeddings-over-pp",
        engines=("native", "megatron", "deepspeed", "fsdp2"),
        severity="warning",
        why="A table that is also the head is held by the first and the last stage, and its two gradients are summed "
        "between them in every step.",
        source="Megatron-LM core/distributed/finalize_model_grads.py (embedding group all-reduce)",
        breaks=_breaks_tied,
        message=_tied_message,
        candidates=NO_PIPELINE,
    ),
)
