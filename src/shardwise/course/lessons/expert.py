"""Expert parallelism: route, dispatch, compute, combine; who gets how many tokens, and what a capacity drops."""

import numpy as np

from shardwise.claims import Claim
from shardwise.course.lesson import Check, Lesson, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import (
    EXACT,
    TinyRun,
    batch_of,
    exchange_picture,
    require_multiple,
    tiny_plan,
    tiny_run,
    traffic_table,
    walk,
)
from shardwise.course.numerics.arrays import Array
from shardwise.course.numerics.expert_parallel import expert_capacity, route
from shardwise.course.numerics.layers import softmax
from shardwise.course.numerics.reenact import Options, gradient_error, reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.layout import Layout
from shardwise.plan import Plan

OPTIONS = ("num_ranks", "num_experts", "num_experts_per_tok", "seq_len", "num_hidden_layers", "seed")
CAPACITIES = (None, 2.0, 1.5, 1.25, 1.0, 0.5)
SAMPLE_TOKENS = 512
CAPACITY = 1.0


def make_lesson(request: LessonRequest) -> Lesson:
    """Train a mixture of experts that live on different ranks."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    experts = checked("num_experts", request.num_experts, default=2 * num_ranks, low=2, high=64)
    require_multiple("num_experts", experts, of=num_ranks, why="each rank holds as many")
    per_token = checked("num_experts_per_tok", request.num_experts_per_tok, default=2, low=1, high=experts)
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=1, low=1, high=4)
    seq_len = checked("seq_len", request.seq_len, default=16, low=2, high=256)
    seed = checked_seed(request)
    model = tiny_model(num_hidden_layers=layers, num_experts=experts, num_experts_per_tok=per_token)
    plan = tiny_plan(model, Layout(dp_shard=num_ranks, ep=num_ranks, zero_stage=0), seq_len=seq_len)
    run = tiny_run(plan, seed=seed)
    return Lesson(
        name="expert",
        title=f"{experts} experts over {num_ranks} ranks",
        what="A simulation in numbers: a router gives each token to its likeliest experts. Copies of the tokens travel "
        "to the ranks of their experts and the answers travel back, in forward and in backward. Everything else is "
        "data parallel.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="num-experts", value=experts, unit="count"),
            Setting(name="num-experts-per-tok", value=per_token, unit="count"),
            Setting(name="seq-len", value=seq_len, unit="count", meaning="one sequence a rank"),
        ),
        tables=(
            _received_table(run),
            _capacity_table(experts, per_token, seed),
            traffic_table(run.counted),
        ),
        steps=walk(run.counted),
        checks=(*run.checks, _dropping_check(plan, seed)),
        claims=_claims(run, per_token),
        pictures=(exchange_picture(run.counted, title="Dispatch and combine, forward and backward"),),
        notes=(
            "How much a rank receives is the router's choice: the inventory predicts the mean, exactly in sum. The "
            "rank with the popular experts is the one that all wait for.",
            "A capacity makes the work predictable by dropping copies: those tokens go on with the residual alone, and "
            "what is trained is no longer what one device without a capacity trains.",
        ),
    )


def _received_table(run: TinyRun) -> LessonTable:
    """Tabulate what each rank sends and receives in dispatch; experts send back as much as they received."""
    rows = []
    for rank in run.counted.ranks:
        routed = [one for one in rank.messages if one.axis == "ep" and one.phase == "forward"]
        dispatched = sum(one.payload_bytes for one in routed if one.name == "expert dispatch")
        answered = sum(one.payload_bytes for one in routed if one.name == "expert combine")
        kept = rank.held.peak["activations"]
        rows.append((str(rank.number), dispatched, answered, answered / dispatched, kept))
    return LessonTable(
        title="Copies of tokens, all layers of one forward",
        head=(
            "rank | sent to experts: bytes | answered by its experts: bytes | over the mean: ratio | "
            "activations kept: bytes"
        ),
        rows=tuple(rows),
    )


def sample_probabilities(experts: int, seed: int) -> Array:
    """A router that is as undecided as an untrained one, for some hundred tokens."""
    random = np.random.default_rng(seed)
    return softmax(random.standard_normal((SAMPLE_TOKENS, experts)) + 0.5 * random.standard_normal(experts))


def _capacity_table(experts: int, per_token: int, seed: int) -> LessonTable:
    probabilities = sample_probabilities(experts, seed)
    mean = SAMPLE_TOKENS * per_token / experts
    rows = []
    for ratio in CAPACITIES:
        capacity = None
        if ratio is not None:
            capacity = expert_capacity(
                num_tokens=SAMPLE_TOKENS, num_experts=experts, num_experts_per_tok=per_token, capacity_ratio=ratio
            )
        routes = route(probabilities, per_token, capacity)
        name = "none" if ratio is None else f"{ratio:g}"
        dropped = routes.num_dropped / (SAMPLE_TOKENS * per_token)
        rows.append((name, capacity, int(routes.sent_X.max()) / mean, dropped))
    return LessonTable(
        title=f"{SAMPLE_TOKENS} tokens through a router that likes some experts more",
        head=(
            "capacity factor | most copies an expert takes: count | busiest over the mean: ratio | "
            "copies dropped: fraction"
        ),
        rows=tuple(rows),
    )


def _dropping_check(plan: Plan, seed: int) -> Check:
    """Checks that ranks with a capacity drop what each would drop alone, as micro-batches of one rank."""
    weights, batch = initial_weights(plan.model, seed=seed), batch_of(plan, seed=seed)
    count = plan.global_batch_size
    alone = tiny_plan(
        plan.model, Layout(zero_stage=0), seq_len=plan.recipe.seq_len, num_microbatches=count, micro_batch_size=1
    )
    found = reenact(plan, weights, [batch], Options(capacity_ratio=CAPACITY))
    expected = reenact(alone, weights, [batch], Options(capacity_ratio=CAPACITY))
    return Check(
        what=f"capacity factor {CAPACITY:g}: gradients against one rank that drops the same copies",
        difference=gradient_error(found, expected),
        limit=EXACT,
    )


def _claims(run: TinyRun, per_token: int) -> tuple[Claim, ...]:
    plan = run.counted.plan
    tokens = plan.recipe.seq_len * plan.model.num_hidden_layers
    whole = tokens * per_token * plan.model.hidden_size * 4
    rank = run.counted.ranks[0]
    dispatched = sum(
        one.payload_bytes for one in rank.messages if one.name == "expert dispatch" and one.phase == "forward"
    )
    return (
        Claim(
            says="a rank dispatches tokens x experts per token x hidden size",
            source="GShard, section 2.2; the inventory",
            said=float(whole),
            computed=float(dispatched),
            unit="bytes",
            verdict="right",
            note="however the router chooses: the sum over the ranks is fixed, only who receives is not",
        ),
    )
