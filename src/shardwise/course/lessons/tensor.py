"""Tensor parallelism: column then row, whole transformer blocks, sequence parallelism and a divided vocabulary."""

from shardwise.claims import Claim
from shardwise.course.lesson import Check, Lesson, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import (
    EXACT,
    ROUNDING,
    TinyRun,
    exchange_picture,
    held_table,
    require_multiple,
    tiny_plan,
    tiny_run,
    tiny_width,
    traffic_table,
    walk,
)
from shardwise.course.numerics.divided_products import product_errors
from shardwise.course.numerics.division import Division
from shardwise.course.numerics.tiny_model import tiny_model, weights_of
from shardwise.layout import Layout
from shardwise.model import Weight

OPTIONS = (
    "num_ranks",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "num_hidden_layers",
    "seq_len",
    "seed",
)
WIDTH = 512
"""The width of the matrices; the scaling lesson's 8192 x 8192 only take longer."""


NOTES = (
    "A column-parallel product and the row-parallel one after it need one exchange together: the sum of the "
    "outputs. Backward needs one too: the sum of the gradients of their input.",
    "An all-reduce is a reduce-scatter and an all-gather. Sequence parallelism puts the norms between the two: "
    "the same bytes, and activations that are divided everywhere.",
    "The loss needs three numbers per token of each rank instead of its logits: the maximum, the sum of the "
    "exponentials, and the logit of the right token.",
)


def make_lesson(request: LessonRequest) -> Lesson:
    """Divide products, then a whole model, with and without sequence parallelism."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    heads = checked("num_attention_heads", request.num_attention_heads, default=2 * num_ranks, low=1, high=64)
    kv_heads = checked(
        "num_key_value_heads",
        request.num_key_value_heads,
        default=num_ranks // 2 if num_ranks % 2 == 0 else 1,
        low=1,
        high=64,
    )
    _require_heads(num_ranks, heads, kv_heads)
    hidden = tiny_width(request.hidden_size, default=8 * heads, heads=heads)
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=1, low=1, high=8)
    seq_len = checked("seq_len", request.seq_len, default=4 * num_ranks, low=2, high=512)
    seed = checked_seed(request)
    model = tiny_model(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=6 * num_ranks,
        vocab_size=8 * num_ranks,
    )
    runs = {
        name: tiny_run(
            tiny_plan(
                model, Layout(tp=num_ranks, zero_stage=0, sequence_parallel=divides), engine="megatron", seq_len=seq_len
            ),
            seed=seed,
        )
        for name, divides in (("tensor parallel", False), ("with sequence parallelism", True))
    }
    plain, divided = runs.values()
    products, checks, claims = _products(num_ranks, seed)
    return Lesson(
        name="tensor",
        title=f"Tensor parallelism over {num_ranks} ranks",
        what="A simulation in numbers: every matrix is divided over the ranks, by columns before a nonlinearity and by "
        "rows after it, attention by heads, the token table, the head and the loss by vocabulary. Forward and backward "
        "are computed by all ranks with their parts only.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="num-attention-heads", value=heads, unit="count"),
            Setting(name="num-key-value-heads", value=kv_heads, unit="count"),
            Setting(name="hidden-size", value=hidden, unit="count"),
            Setting(name="seq-len", value=seq_len, unit="count"),
        ),
        tables=(
            products,
            _parts_table(plain),
            _ways_table(runs),
            traffic_table(plain.counted),
            traffic_table(divided.counted, title="The same with sequence parallelism"),
            held_table(divided.counted, title="What each rank holds with sequence parallelism"),
        ),
        steps=walk(divided.counted),
        checks=(*checks, *plain.checks, *divided.checks),
        claims=claims,
        pictures=(exchange_picture(divided.counted, title="One step with sequence parallelism"),),
        notes=NOTES,
    )


def _require_heads(num_ranks: int, heads: int, kv_heads: int) -> None:
    """Refuse heads that the ranks cannot share."""
    require_multiple("num_attention_heads", heads, of=num_ranks, why="each rank computes whole heads")
    require_multiple("num_attention_heads", heads, of=kv_heads, why="each key-value head serves as many")
    if num_ranks % kv_heads:
        require_multiple("num_key_value_heads", kv_heads, of=num_ranks, why="ranks divide or copy them evenly")


def _products(num_ranks: int, seed: int) -> tuple[LessonTable, tuple[Check, ...], tuple[Claim, ...]]:
    """One product divided by columns, one by rows, and the pair around a nonlinearity."""
    double = product_errors(num_ranks=num_ranks, width=WIDTH, dtype="float64", seed=seed)
    single = product_errors(num_ranks=num_ranks, width=WIDTH, dtype="float32", seed=seed)
    names = ("by columns: outputs side by side", "by rows: outputs added", "columns, nonlinearity, rows: one sum")
    table = LessonTable(
        title=f"Products with {WIDTH} x {WIDTH} matrices",
        head="product | exchange | error, fp64: number | error, fp32: number",
        rows=tuple(
            (name, kind, fp64, fp32)
            for name, kind, fp64, fp32 in zip(
                names, ("all-gather", "all-reduce", "all-reduce"), double, single, strict=True
            )
        ),
        note="relative to the largest output",
    )
    checks = tuple(
        Check(what=f"{name}, {dtype}, against the whole product", difference=max(found), limit=limit)
        for name, dtype, found, limit in (
            ("products", "fp64", double, EXACT),
            ("products", "fp32", single, ROUNDING),
        )
    )
    claims = (
        Claim(
            says="the error of a product divided by columns is zero or machine epsilon",
            source="scaling lesson, step 2",
            said=0.0,
            computed=double[0],
            unit="number",
            verdict="right" if double[0] == 0.0 else "loose",
            note="a sum by rows rounds in another order: " + f"{double[1]:.1e} in fp64, {single[1]:.1e} in fp32",
        ),
        Claim(
            says="an all-reduce follows every matrix product",
            source="scaling lesson, tensor parallelism",
            said="every product",
            computed="every column-row pair",
            verdict="wrong",
            note="a block has seven products and two pairs: two all-reduces forward and two backward",
        ),
    )
    return table, checks, claims


def _parts_table(run: TinyRun) -> LessonTable:
    """Tabulate what rank 0 has of every weight of the tables and the first block."""
    plan = run.counted.plan
    division = Division(plan=plan, number=0)
    rows = [
        (
            weight.name,
            weight.split,
            _shape_text(weight.shape),
            _part_text(division, weight),
            division.num_copies(weight),
        )
        for (block, _), weight in weights_of(plan.model)
        if block <= 0
    ]
    return LessonTable(
        title="What each rank has of a weight",
        head="weight | divided by | whole | of one rank | ranks with the same part: count",
        rows=tuple(rows),
        note="key-value heads that are fewer than the ranks are copied; the copies' gradients are summed",
    )


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _part_text(division: Division, weight: Weight) -> str:
    return _shape_text(tuple(part.stop - part.start for part in division.part(weight)))


def _ways_table(runs: dict[str, TinyRun]) -> LessonTable:
    rows = []
    for name, run in runs.items():
        rank = run.counted.ranks[0]
        sent = {
            phase: sum(one.sent_bytes for one in rank.messages if one.phase == phase)
            for phase in ("forward", "backward")
        }
        rows.append((name, sent["forward"], sent["backward"], rank.held.peak["activations"], run.checks[0].difference))
    return LessonTable(
        title="Two ways of completing the sums",
        head=(
            "way | sent forward: bytes | sent backward: bytes | activations kept: bytes | error of the gradient: number"
        ),
        rows=tuple(rows),
        note="Megatron gathers the divided input once more in backward instead of keeping it whole",
    )
