"""Rules about micro-batches: batch arithmetic, and how many of them a schedule needs."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES, engines_that
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.rules.batch_arithmetic import nearest_batch_settings
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule
from shardwise.schedules.table import CHUNKED_SCHEDULE, DEFAULT_SCHEDULE, SCHEDULE_KINDS, TORCH_SCHEDULES
from shardwise.step.held_stage import num_microbatches_per_round


def _breaks_batch(plan: Plan) -> bool:
    wanted = plan.recipe.global_batch_size
    return wanted is not None and wanted % (plan.recipe.micro_batch_size * plan.layout.data_parallel_size) != 0


def _batch_message(plan: Plan) -> str:
    wanted, micro = plan.recipe.global_batch_size or 0, plan.recipe.micro_batch_size
    ranks = plan.layout.data_parallel_size
    step = micro * ranks
    return (
        f"global_batch_size={wanted} is not a multiple of micro_batch_size={micro} times {ranks} data-parallel ranks "
        f"({wanted} % {step} = {wanted % step})"
    )


def _batch_candidates(plan: Plan) -> Iterable[Changes]:
    wanted, micro = plan.recipe.global_batch_size or 0, plan.recipe.micro_batch_size
    ranks = plan.layout.data_parallel_size
    if wanted % ranks == 0:
        for smaller in range(micro - 1, 0, -1):
            if wanted % (smaller * ranks) == 0:
                yield (("micro_batch_size", smaller),)
                break
    for setting in nearest_batch_settings(global_batch_size=wanted, micro_batch_size=micro, data_parallel_size=ranks):
        if setting.data_parallel_size == ranks:
            yield (("global_batch_size", setting.global_batch_size),)


def whole_microbatches(plan: Plan) -> int | None:
    """Micro-batches per step; ``None`` when the batch arithmetic does not come out even."""
    return None if _breaks_batch(plan) else plan.num_microbatches


def _more_microbatches(plan: Plan, *, multiple: int) -> Iterable[Changes]:
    """Batches that give a multiple of ``multiple`` micro-batches; then smaller micro-batches; then no pipeline."""
    current = whole_microbatches(plan) or 1
    step = plan.recipe.micro_batch_size * plan.layout.data_parallel_size
    total = plan.global_batch_size // plan.layout.data_parallel_size
    for micro in range(plan.recipe.micro_batch_size - 1, 0, -1):
        if total % micro == 0 and (total // micro) % multiple == 0:
            changes: Changes = (("micro_batch_size", micro),)
            if plan.recipe.global_batch_size is None:
                changes += (("global_batch_size", plan.global_batch_size),)
            yield changes
            break
    below, above = current // multiple * multiple, -(-current // multiple) * multiple
    for count in dict.fromkeys((above, below)):
        if count:
            yield (("global_batch_size", count * step),)


def _breaks_torch_microbatches(plan: Plan) -> bool:
    la = plan.layout
    if la.pp == 1 or la.schedule not in TORCH_SCHEDULES:
        return False
    count = whole_microbatches(plan)
    return count is not None and count < _least_microbatches(la)


def _least_microbatches(layout: Layout) -> int:
    return SCHEDULE_KINDS[layout.schedule].least_microbatches_per_rank * layout.pp


def _torch_microbatches_message(plan: Plan) -> str:
    la = plan.layout
    needed = _least_microbatches(la)
    count = "1 micro-batch is" if plan.num_microbatches == 1 else f"{plan.num_microbatches} micro-batches are"
    return f"{count} fewer than the {needed} stages of schedule {la.schedule} with pp={la.pp}, which torch refuses"


def _torch_microbatches_candidates(plan: Plan) -> Iterable[Changes]:
    yield from _more_microbatches(plan, multiple=_least_microbatches(plan.layout))
    yield (("schedule", "gpipe"),)


def _breaks_dualpipe(plan: Plan) -> bool:
    la = plan.layout
    if la.model_copies == 1:
        return False
    count = whole_microbatches(plan)
    return la.pp % 2 == 1 or (count is not None and (count % 2 == 1 or count < 2 * la.pp))


def _dualpipe_message(plan: Plan) -> str:
    return (
        f"schedule dualpipe runs micro-batches from both ends: it needs an even pp and an even number of at least 2 pp "
        f"of them, and there are {plan.num_microbatches} with pp={plan.layout.pp}"
    )


def _dualpipe_candidates(plan: Plan) -> Iterable[Changes]:
    pp = plan.layout.pp
    if pp % 2 == 0:
        yield from _more_microbatches(plan, multiple=2 * pp)
    yield (("schedule", DEFAULT_SCHEDULE),)
    yield (("schedule", "zb-h1"),)
    yield (("pp", pp + 1),)
    yield (("pp", 1), ("schedule", DEFAULT_SCHEDULE))


def _left_over(plan: Plan) -> int:
    """Micro-batches that fill no round: fewer than the stages in Megatron's last round, any in torch's equal rounds."""
    per_round = num_microbatches_per_round(plan)
    rest = plan.num_microbatches % (per_round or _num_torch_rounds(plan))
    return 0 if per_round and rest >= plan.layout.pp else rest


def _num_torch_rounds(plan: Plan) -> int:
    return max(1, plan.num_microbatches // plan.layout.pp)


def _breaks_interleaving_multiple(plan: Plan) -> bool:
    la = plan.layout
    if la.pp == 1:
        return False
    kind = SCHEDULE_KINDS[la.schedule]
    # Outside torch the zero-bubble schedule runs one chunk a rank.
    takes_chunks = kind.least_chunks > 1 or ENGINES[plan.engine].runs_torch_pipelines
    if not kind.runs_in_rounds or not takes_chunks:
        return False
    count = whole_microbatches(plan)
    return count is not None and _left_over(plan) != 0


def _interleaving_multiple_message(plan: Plan) -> str:
    la, count, per_round = plan.layout, plan.num_microbatches, num_microbatches_per_round(plan)
    if la.num_microbatches_per_round is not None:
        return (
            f"rounds of {per_round} leave {_left_over(plan)} of {count} micro-batches, fewer than the pp={la.pp} "
            f"stages that they would have to keep busy"
        )
    multiple = per_round or _num_torch_rounds(plan)
    unit = f"pp={la.pp}" if per_round else f"the {multiple} rounds of pp={la.pp}"
    rest = _left_over(plan)
    return f"schedule {la.schedule} needs a multiple of {unit} micro-batches, but {count} % {multiple} = {rest}"


def _interleaving_multiple_candidates(plan: Plan) -> Iterable[Changes]:
    pp, count = plan.layout.pp, whole_microbatches(plan) or 1
    if ENGINES[plan.engine].interleaves_in_rounds_of_pp and count > pp:
        least = next(size for size in range(pp, count + 1) if not 0 < count % size < pp)
        yield (("num_microbatches_per_round", least),)
    yield from _more_microbatches(plan, multiple=plan.layout.pp)
    yield (("vpp", 1), ("schedule", DEFAULT_SCHEDULE), ("num_microbatches_per_round", None))


def _breaks_round(plan: Plan) -> bool:
    la = plan.layout
    if la.num_microbatches_per_round is None:
        return False
    if la.vpp == 1 or not ENGINES[plan.engine].interleaves_in_rounds_of_pp:
        return True
    count = whole_microbatches(plan)
    return la.num_microbatches_per_round < la.pp or (count is not None and la.num_microbatches_per_round > count)


def _round_message(plan: Plan) -> str:
    la = plan.layout
    if la.vpp == 1:
        return f"num_microbatches_per_round={la.num_microbatches_per_round} needs several chunks a stage, but vpp=1"
    if not ENGINES[plan.engine].interleaves_in_rounds_of_pp:
        return f"num_microbatches_per_round is not offered by {plan.engine}, only by megatron"
    return (
        f"num_microbatches_per_round={la.num_microbatches_per_round} is not between pp={la.pp} and the "
        f"{plan.num_microbatches} micro-batches of a step"
    )


def _round_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    if la.vpp > 1 and ENGINES[plan.engine].interleaves_in_rounds_of_pp:
        asked = max(la.num_microbatches_per_round or 1, la.pp)
        yield (("num_microbatches_per_round", min(asked, plan.num_microbatches)),)
    yield (("num_microbatches_per_round", None),)


def _breaks_few(plan: Plan) -> bool:
    la = plan.layout
    if la.pp == 1:
        return False
    count = whole_microbatches(plan)
    return count is not None and count < la.pp


def _few_message(plan: Plan) -> str:
    pp, count = plan.layout.pp, plan.num_microbatches
    idle = 100 * (pp - 1) / (count + pp - 1)
    return (
        f"{count} micro-batch(es) cannot fill pp={pp} stages: with one chunk a stage {idle:.1f} % of the step would be "
        f"idle"
    )


def _few_candidates(plan: Plan) -> Iterable[Changes]:
    yield from _more_microbatches(plan, multiple=plan.layout.pp)


RULES = (
    Rule(
        name="recipe-batch-arithmetic",
        why="global_batch_size = micro_batch_size * micro-batches * dp_replicate * dp_shard, all whole numbers. "
        "Changing tp at a fixed micro-batch count changes the global batch, so it is fixed and the count follows.",
        source="definition; OpenRLHF issue 346",
        reads=("global_batch_size", "micro_batch_size", "data_parallel_size"),
        breaks=_breaks_batch,
        message=_batch_message,
        candidates=_batch_candidates,
    ),
    Rule(
        name="engine-torch-microbatches",
        engines=engines_that(lambda engine: engine.runs_torch_pipelines),
        why="torch's 1F1B refuses fewer micro-batches than stages, and DualPipeV fewer than its two stages a rank.",
        source="torch 2.13 distributed/pipelining/schedules.py (Schedule1F1B, ScheduleDualPipeV), run",
        reads=("pp", "schedule", "num_microbatches"),
        breaks=_breaks_torch_microbatches,
        message=_torch_microbatches_message,
        candidates=_torch_microbatches_candidates,
    ),
    Rule(
        name="layout-dualpipe-microbatches",
        why="DualPipe sends half of the micro-batches through the pipeline from each end, and every rank holds a stage "
        "of both directions.",
        source="deepseek-ai/DualPipe dualpipe/dualpipe.py",
        reads=("pp", "schedule", "num_microbatches"),
        breaks=_breaks_dualpipe,
        message=_dualpipe_message,
        candidates=_dualpipe_candidates,
    ),
    Rule(
        name="layout-interleaving-multiple",
        engines=engines_that(lambda engine: CHUNKED_SCHEDULE in engine.schedules),
        why="Interleaving runs micro-batches in rounds: Megatron in rounds of pp (or "
        "num_microbatches_per_round) of which the last has no fewer than pp, torch in micro-batches // pp rounds of "
        "equal length.",
        source="Megatron-LM core/pipeline_parallel/schedules.py (final_microbatch_group_size); torch 2.13 "
        "ScheduleInterleaved1F1B, run",
        reads=("pp", "schedule", "num_microbatches", "num_microbatches_per_round"),
        breaks=_breaks_interleaving_multiple,
        message=_interleaving_multiple_message,
        candidates=_interleaving_multiple_candidates,
    ),
    Rule(
        name="layout-microbatches-per-round",
        why="A round keeps every stage busy, so it holds at least pp micro-batches, and no more than a step has; torch "
        "chooses its rounds itself, and one chunk a stage has none.",
        source="Megatron-LM core/pipeline_parallel/schedules.py (microbatch_group_size_per_vp_stage)",
        reads=("num_microbatches_per_round", "pp", "vpp", "num_microbatches"),
        breaks=_breaks_round,
        message=_round_message,
        candidates=_round_candidates,
    ),
    Rule(
        name="layout-microbatches-below-stages",
        severity="warning",
        why="With fewer micro-batches than stages some stage is idle at every moment: (p-1)/(m+p-1) of the step.",
        source="Huang et al. 2018, arXiv:1811.06965; pytorch/torchtitan issue 775",
        breaks=_breaks_few,
        message=_few_message,
        candidates=_few_candidates,
    ),
)
