"""What a calibration timed takes as long as it was timed; what it did not time stays the catalogue's."""

from dataclasses import fields, replace

import pytest

from calibrations import BLOCK, H100, calibration, full, timed_core
from shardwise.calibration import GroupTable, ProductPoint, Residual, TimedBytes
from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.predict.calibrated_kernels import calibrated_products, measured_rate
from shardwise.predict.calibrated_parts import block_of
from shardwise.predict.machine_rates import machine_rates
from shardwise.predict.product_rates import Product, product_rates
from shardwise.recipe import Recipe
from shardwise.step.inventory import Operation
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import BlockBook, operation_groups
from shardwise.step.stage_context import StageContext
from shardwise.units import MIB

CLUSTER = read_cluster("8xh100-sxm")
SHAPE = {"m": 4096, "n": 6144, "k": 2048}
PRODUCT = Product(product_pass="forward", dtype="bf16", **SHAPE)
CORE = Operation(
    name="core",
    kind="attention",
    phase="forward",
    count=1,
    flop=4.0 * 32 * 8192**2 / 2 * 128,
    num_bytes=0,
    dtype="bf16",
    m=8192,
    n=8192,
    k=128,
)

QUICK = replace(BLOCK, seq_len=64, forward_s=0.1e-3, backward_s=0.2e-3)
"""A block that tells how long its host takes."""


def rates_with(**parts):
    cluster = calibrated_cluster(CLUSTER, calibration(**parts)) if parts else CLUSTER
    plan = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=cluster,
        recipe=Recipe(seq_len=8192, global_batch_size=8, compile=False),
        layout=Layout(dp_shard=8),
    )
    return machine_rates(plan)


def times_of(rates, *operations):
    return rates.phase_times(operations, durations=rates.durations_s(operations))


def timed_product(duration_s):
    return ProductPoint(product_pass="forward", dtype="bf16", duration_s=duration_s, **SHAPE)


def test_a_timed_product_takes_its_measured_time():
    found = calibrated_products(CLUSTER.gpu, calibration(products=(timed_product(321e-6),)))
    assert found.duration_s(PRODUCT) == pytest.approx(321e-6)


def test_half_precision_follows_bf16_and_other_passes_and_widths_keep_the_catalogue():
    found = calibrated_products(CLUSTER.gpu, calibration(products=(timed_product(321e-6),)))
    catalogued = product_rates(CLUSTER.gpu)
    assert found.duration_s(replace(PRODUCT, dtype="fp16")) == pytest.approx(321e-6)
    for other in (replace(PRODUCT, dtype="fp8"), replace(PRODUCT, product_pass="wgrad")):
        assert found.duration_s(other) == catalogued.duration_s(other)


def test_beyond_the_points_the_catalogue_is_scaled_by_the_nearest():
    catalogued = product_rates(CLUSTER.gpu)
    slow = timed_product(1.5 * catalogued.duration_s(PRODUCT))
    found = calibrated_products(CLUSTER.gpu, calibration(products=(slow,)))
    large = Product(product_pass="forward", dtype="bf16", m=32768, n=28672, k=8192)
    assert found.duration_s(large) == pytest.approx(1.5 * catalogued.duration_s(large))


def test_between_two_sizes_time_follows_the_logarithms():
    table = measured_rate((TimedBytes(num_bytes=1000, duration_s=1e-6), TimedBytes(num_bytes=16000, duration_s=4e-6)))
    assert table.duration_s(4000) == pytest.approx(2e-6)
    assert table.duration_s(500) == pytest.approx(0.5e-6)
    assert table.duration_s(32000) == pytest.approx(8e-6)


def test_a_timed_core_takes_its_measured_time_and_a_longer_one_the_same_ratio():
    point = timed_core(forward_s=7e-3, backward_s=9e-3)
    plain, timed = rates_with(), rates_with(attention=(point,), products=(timed_product(3e-4),))
    assert timed.operation_s(CORE) == pytest.approx(7e-3, rel=1e-3)
    longer = replace(CORE, flop=4 * CORE.flop, m=16384, n=16384)
    ratio = 7e-3 / plain.operation_s(CORE)
    assert timed.operation_s(longer) == pytest.approx(ratio * plain.operation_s(longer), rel=1e-3)


def test_elementwise_kernels_run_at_the_measured_rate():
    move = replace(CORE, kind="memory", flop=0.0, num_bytes=3 * 2**30)
    timed = rates_with(products=(timed_product(3e-4),), moves=(TimedBytes(num_bytes=2**30, duration_s=2**30 / 1.7e12),))
    assert timed.operation_s(move) == pytest.approx(3 * 2**30 / 1.7e12)


def test_a_timed_block_takes_its_measured_time():
    timed = rates_with(products=(timed_product(3e-4),), blocks=(BLOCK,))
    operations = block_of(BLOCK, CLUSTER).forward_and_backward
    times = timed.phase_times(operations, durations=timed.durations_s(operations))
    assert times.forward_s == pytest.approx(5e-3)
    assert times.backward_s == pytest.approx(11e-3)


def test_a_block_follows_timed_ones_that_are_gathered_as_it_is():
    """Whether it is gathered is known of the block; how many calls its host makes says nothing about it."""
    alone = replace(BLOCK, num_sequences=4, forward_s=10e-3, backward_s=20e-3)
    slow = replace(alone, is_sharded=True, forward_s=15e-3, backward_s=30e-3)
    timed = rates_with(products=(timed_product(3e-4),), blocks=(alone, slow, QUICK))

    def between_s(layout, recompute):
        recipe = Recipe(seq_len=4096, global_batch_size=8, compile=False, recompute=recompute)
        plan = Plan(model=read_model("llama-3.1-8b"), cluster=CLUSTER, recipe=recipe, layout=layout)
        context = StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=layout)[0])
        groups = operation_groups(context, BlockBook(plan))
        operations = next(group.operations for group in groups if group.part == "recomputed blocks")
        known = timed.durations_s(operations, part="recomputed blocks")
        plain = timed.durations_s(operations, part="optimizer")
        return max(one / other for one, other in zip(known, plain, strict=True) if other)

    alone, gathered = (part[0].forward_ratio for part in (timed.parts.blocks, timed.parts.gathered_blocks))
    assert gathered > 1.1 * alone
    for recompute in ("selective", "full"):
        assert between_s(Layout(tp=8, zero_stage=0), recompute) == pytest.approx(alone)
        assert between_s(Layout(dp_shard=8), recompute) == pytest.approx(gathered)


COMPILED = replace(BLOCK, is_compiled=True, forward_s=3e-3, backward_s=7e-3)
MOVES = (TimedBytes(num_bytes=2**30, duration_s=2**30 / 1.7e12),)


def compiled_rates(**parts):
    cluster = calibrated_cluster(CLUSTER, calibration(**parts))
    return machine_rates(replace(block_of(COMPILED, CLUSTER).plan, cluster=cluster))


def test_compiled_blocks_do_not_follow_eager_ones():
    assert compiled_rates(products=(timed_product(3e-4),), blocks=(BLOCK,)).parts.blocks == ()


def test_a_compiled_block_takes_the_time_of_a_compiled_one_with_its_products():
    timed = compiled_rates(products=(timed_product(3e-4),), moves=MOVES, blocks=(BLOCK, COMPILED))
    operations = block_of(COMPILED, CLUSTER).forward_and_backward
    times = timed.phase_times(operations, durations=timed.durations_s(operations))
    assert times.forward_s == pytest.approx(3e-3)
    assert times.backward_s == pytest.approx(7e-3)


def test_sums_of_two_tensors_say_nothing_of_compiled_kernels_until_compiled_blocks_were_timed():
    assert compiled_rates(moves=MOVES, blocks=(BLOCK,)).kernels.moves is None
    assert compiled_rates(moves=MOVES, blocks=(COMPILED,)).kernels.moves is not None


def test_a_short_loop_of_products_is_no_faster_than_the_power_limit_lets_long_runs_be():
    large = Product(product_pass="forward", dtype="bf16", m=16384, n=8192, k=8192)
    burst_s = large.flop / 800e12
    point = ProductPoint(product_pass="forward", dtype="bf16", m=16384, n=8192, k=8192, duration_s=burst_s)
    found = calibrated_products(CLUSTER.gpu, calibration(products=(point,)))
    assert large.flop / found.duration_s(large) == pytest.approx(680e12, rel=1e-3)


def test_a_file_with_attention_alone_changes_the_step():
    point = timed_core(forward_s=7e-3, backward_s=20e-3)
    plain, timed = rates_with(), rates_with(attention=(point,))
    assert timed.operation_s(CORE) == pytest.approx(7e-3, rel=1e-3)
    assert timed.operation_s(CORE) > 2 * plain.operation_s(CORE)


def test_where_processors_compute_every_kernel_costs_its_dispatch():
    machine = replace(H100, device_kind="cpu")
    timed = rates_with(machine=machine, products=(timed_product(3e-4),), kernel_launch_s=5e-6)
    move = replace(CORE, kind="memory", flop=0.0, num_bytes=0, num_kernels=7)
    assert times_of(timed, move).forward_s == pytest.approx(35e-6)
    assert timed.kernels.host_forward_s == 0


def on_cpu(**parts):
    """Rates where kernels cost 5 us each, and memory moves at 1 GB/s whatever the size."""
    moves = tuple(TimedBytes(num_bytes=num_bytes, duration_s=num_bytes / 1e9) for num_bytes in (2**10, 2**30))
    machine = replace(H100, device_kind="cpu")
    products = (timed_product(3e-4),)
    return rates_with(machine=machine, products=products, moves=moves, kernel_launch_s=5e-6, **parts)


def test_on_processors_a_call_costs_what_gathering_adds_beyond_its_copies():
    """121 calls around a unit. Of P weights gathering copies 2 x 4 P bytes both ways, reducing 8 P."""
    alone = replace(BLOCK, dtype="fp32", forward_s=5e-3, backward_s=11e-3)
    num_params = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 8192 + 2 * 2048
    tables = 2 * 2048 * 128 + 2048
    more_s = 24 * (num_params + tables) / 1e9 + 121 * 50e-6
    gathered = replace(alone, is_sharded=True, forward_s=6e-3, backward_s=10e-3 + more_s)
    assert on_cpu(blocks=(alone, gathered)).kernels.dispatch_call_s == pytest.approx(50e-6)
    assert on_cpu(blocks=(alone,)).kernels.dispatch_call_s == pytest.approx(5e-6)


def test_on_processors_blocks_take_longer_but_their_calls_do_not():
    """Calls were timed as such: what slows kernels between products does not slow them again."""
    alone = replace(BLOCK, dtype="fp32", forward_s=5.0, backward_s=11.0)
    timed = on_cpu(blocks=(alone, replace(alone, is_sharded=True, backward_s=11.5)))
    operations = block_of(replace(alone, is_sharded=True), CLUSTER).forward_and_backward
    known = timed.durations_s(operations)
    calls = [number for number, one in enumerate(operations) if one.name.startswith("host calls")]
    moves = [number for number, one in enumerate(operations) if one.name == "norms"]
    plain = on_cpu().durations_s(operations)
    assert timed.parts.gathered_blocks == ()
    assert all(known[number] > 2 * plain[number] for number in moves)
    assert sum(known[number] for number in calls) == pytest.approx(121 * timed.kernels.dispatch_call_s)


def test_factors_from_runs_multiply_kernels_and_the_host():
    plain = rates_with()
    learned = rates_with(
        residuals=(Residual(name="compute", ratio=1.2, num_runs=2), Residual(name="host", ratio=0.5, num_runs=2))
    )
    assert times_of(learned, CORE).forward_s == pytest.approx(1.2 * times_of(plain, CORE).forward_s)
    assert learned.kernels.host_forward_s == pytest.approx(0.5 * plain.kernels.host_forward_s)


def test_blocks_between_two_timed_ones_lie_between_their_ratios():
    """What a block takes beyond its products and attention is laid to the kernels between them."""
    long = replace(BLOCK, forward_s=2.3e-3, backward_s=3.3e-3)
    small = replace(BLOCK, seq_len=1024, forward_s=0.62e-3, backward_s=0.8e-3)
    tables = {"products": (timed_product(3e-4),)}
    timed, plain = rates_with(**tables, blocks=(long, small, QUICK)), rates_with(**tables)
    ratios = sorted(part.forward_ratio for part in timed.parts.blocks)
    middle = block_of(replace(BLOCK, seq_len=2048), CLUSTER).forward_and_backward
    forward = [number for number, operation in enumerate(middle) if operation.phase == "forward"]
    both = [rates.durations_s(middle) for rates in (timed, plain)]
    between = [number for number in forward if middle[number].kind == "memory" and both[1][number]]
    assert len(ratios) == 2
    assert all(ratios[0] < both[0][number] / both[1][number] < ratios[1] for number in between)
    assert all(both[0][number] == both[1][number] for number in forward if middle[number].kind == "matmul")


def test_context_parallel_attention_is_not_the_kernel_that_was_timed():
    point = timed_core(num_sequences=2, seq_len=4096, forward_s=0.5e-3, backward_s=1.5e-3)
    cluster = calibrated_cluster(CLUSTER, calibration(products=(timed_product(3e-4),), attention=(point,)))
    recipe = Recipe(seq_len=8192, global_batch_size=8, compile=False)
    plan = Plan(model=read_model("llama-3.1-8b"), cluster=cluster, recipe=recipe, layout=Layout(dp_shard=8))
    assert machine_rates(plan).kernels.attention_forward is not None
    assert machine_rates(replace(plan, layout=Layout(cp=2, dp_shard=4))).kernels.attention_forward is None


def test_processors_attend_by_one_kernel_whatever_is_divided():
    """Masks differ, the kernel does not: what was timed holds for pieces of a sequence, too."""
    point = timed_core(dtype="fp32", head_dim=128, seq_len=4096, forward_s=0.5e-3, backward_s=1.5e-3)
    measured = calibration(
        products=(timed_product(3e-4),), attention=(point,), machine=replace(H100, device_kind="cpu")
    )
    plan = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=calibrated_cluster(CLUSTER, measured),
        recipe=Recipe(seq_len=8192, global_batch_size=8, compile=False),
        layout=Layout(cp=2, dp_shard=4),
    )
    assert machine_rates(plan).kernels.attention_forward is not None


def test_the_host_of_a_block_and_of_its_gathering_are_told_apart():
    """21 and 34 kernels alone; FSDP2 makes 121 calls around them."""
    tiny = replace(BLOCK, hidden_size=256, intermediate_size=512, seq_len=256, num_sequences=1)
    alone = replace(tiny, forward_s=21 * 50e-6, backward_s=34 * 60e-6)
    gathered = replace(tiny, is_sharded=True, forward_s=3e-3, backward_s=1.05e-3 + 2.04e-3 + 121 * 45e-6 - 3e-3)
    found = rates_with(products=(timed_product(3e-4),), blocks=(alone, gathered)).kernels
    assert (found.host_forward_s, found.host_backward_s) == pytest.approx((50e-6, 60e-6))
    assert (found.call_forward_s, found.call_backward_s) == pytest.approx((45e-6, 45e-6))


def test_processors_need_no_library_workspace_and_no_context():
    machine = replace(H100, device_kind="cpu")
    plan = block_of(BLOCK, CLUSTER).plan
    plan = replace(plan, recipe=replace(plan.recipe, compile=True))  # uncompiled they run other norms
    on_gpu = predict(plan).memory.worst
    here = calibrated_cluster(CLUSTER, calibration(machine=machine))
    on_cpu = predict(replace(plan, cluster=here)).memory.worst
    assert on_gpu.peak_allocated_bytes - on_cpu.peak_allocated_bytes == 64 * MIB
    assert on_cpu.device_used_bytes == on_cpu.peak_reserved_bytes


def test_our_runtime_attends_by_flash_attention_under_context_parallelism():
    """``train/context_parallel.py``: cuDNN's causal mask is not aligned to the lower right corner."""
    alone, divided = (
        read_plan({"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 8192}, "layout": layout})
        for layout in ({"dp_shard": 8}, {"dp_shard": 4, "cp": 2})
    )
    names = [machine_rates(plan).kernels.attention.kernel for plan in (alone, divided)]
    assert names == ["cudnn", "fa2"]


TABLES = ("products", "attention", "moves", "optimizer", "collectives", "blocks", "tables")


def step_with(calibrated):
    """Seconds of an eager step whose tables, blocks, optimizer and collectives all take some of it."""
    cluster = calibrated_cluster(CLUSTER, calibrated) if calibrated else CLUSTER
    plan = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=cluster,
        recipe=Recipe(seq_len=8192, global_batch_size=8, compile=False),
        layout=Layout(dp_shard=8),
    )
    return predict(plan).time.step_s


@pytest.mark.parametrize("name", TABLES)
def test_a_calibration_with_one_table_alone_is_not_ignored(name):
    alone = calibration(**{name: slower(getattr(full(), name))})
    assert alone.is_measured
    assert step_with(alone) != pytest.approx(step_with(None), rel=1e-6)
    assert "nothing measured" not in calibrated_cluster(CLUSTER, alone).assumptions[0]


def slower(points):
    """The points of a table on a machine that takes twice as long for everything."""
    return tuple(slow_point(point) for point in points)


def slow_point(point):
    if isinstance(point, GroupTable):
        return replace(point, points=slower(point.points))
    names = [name for name in ("duration_s", "forward_s", "backward_s") if hasattr(point, name)]
    return replace(point, **{name: 2 * getattr(point, name) for name in names})


def test_every_table_of_a_calibration_is_one_that_is_named():
    everything = full()
    tables = [found.name for found in fields(everything) if getattr(everything, found.name) and is_table(found.name)]
    assert sorted(tables) == sorted(TABLES)
    assert len(everything.timed_parts) == len(TABLES)


def is_table(name):
    """Factors from runs are no table, and are read whatever was timed."""
    return isinstance(getattr(full(), name), tuple) and name != "residuals"
