"""Bytes, groups and numbers of collective calls, added up by hand for Llama 3 8B and 2,048 tokens."""

from collections import Counter
from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.step.collective_calls import Groups
from step.test_collectives import N, calls_of, moe_model, plan_of, row_exchanges

HIDDEN = 2048 * 4096 * 2
"""Bytes of the hidden states of one micro-batch."""
BLOCK, MATRICES, TABLE = 218_112_000, 218_103_808, 128_256 * 4096


def moved(plan, *, stage=0, **wanted):
    """Bytes of all calls of one step that have these values."""
    found = [call for call in calls_of(plan, stage) if all(getattr(call, key) == one for key, one in wanted.items())]
    return sum(call.count * call.num_bytes for call in found)


def shapes_of(plan, name, stage=0):
    """Bytes, calls, ranks and the distance between them of the calls whose name begins so."""
    return [
        (call.num_bytes, call.count, call.group_size, call.stride)
        for call in calls_of(plan, stage)
        if call.name.startswith(name)
    ]


def native(*, model=None, recipe=None, **layout):
    chosen = {"exchange_gradients": False, "spread_vocabulary": False} | layout
    return plan_of(Layout(**chosen), engine="native", model=model, **(recipe or {}))


def test_our_fsdp_gathers_two_bytes_of_every_parameter_and_reduces_four():
    """Norm, token table, head and 32 blocks; 31 blocks and the token table are gathered again for backward."""
    plan = native(dp_shard=8)
    assert moved(plan, kind="all_gather", phase="forward") == 2 * N
    assert moved(plan, kind="all_gather", phase="backward") == 2 * (31 * BLOCK + TABLE)
    assert moved(plan, kind="reduce_scatter") == 4 * N
    three = native(dp_shard=8, recipe={"global_batch_size": 24})
    for kind, phase in (("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")):
        assert moved(three, kind=kind, phase=phase) == 3 * moved(plan, kind=kind, phase=phase)
    kept = native(dp_shard=8, reshard_after_forward=False)
    assert moved(kept, kind="all_gather", phase="backward") == 0
    smaller = native(dp_shard=8, reshard_size=4)
    assert {
        call.group_size for call in calls_of(smaller) if call.phase == "backward" and call.kind == "all_gather"
    } == {4}


def test_what_is_accumulated_is_gathered_and_reduced_once():
    """ZeRO-2 keeps parameters and reduces every time; ZeRO-1 waits with reductions as well."""
    for zero_stage, reductions in ((2, 3), (1, 1)):
        plan = native(dp_shard=8, zero_stage=zero_stage, recipe={"global_batch_size": 24})
        assert moved(plan, kind="all_gather") == 2 * N
        assert moved(plan, kind="reduce_scatter") == reductions * 4 * N


def test_replicas_of_our_shards_sum_them_once_a_step():
    plan = native(dp_shard=4, dp_replicate=2, recipe={"global_batch_size": 24})
    assert moved(plan, kind="all_reduce", axis="dp_replicate", phase="backward") == 4 * N // 4
    assert {call.group_size for call in calls_of(plan) if "over replicas" in call.name} == {2}


@pytest.mark.parametrize(
    ("layout", "axis"), [({"dp_shard": 4, "dp_replicate": 2}, "dp_replicate"), ({"dp_shard": 8}, "dp_shard")]
)
def test_whole_states_are_summed_over_all_copies(layout, axis):
    plan = native(zero_stage=0, **layout)
    assert moved(plan, kind="all_reduce", axis=axis, phase="backward") == 4 * N
    assert {call.group_size for call in calls_of(plan) if "over replicas" in call.name} == {8}
    assert moved(plan, kind="all_gather") == moved(plan, kind="reduce_scatter") == 0


def test_every_rank_of_our_fsdp_has_an_equally_long_shard():
    """4,096 numbers of the final norm on three ranks are padded to 3 x 1,366."""
    forward, *_ = shapes_of(native(dp_shard=3), "all-gather embedding and head")
    assert forward[0] == 2 * 3 * 1366


def test_only_the_first_gather_and_the_last_reduction_of_a_micro_batch_cannot_be_hidden():
    plan = native(dp_shard=8)
    exposed = [(call.kind, call.num_bytes) for call in calls_of(plan) if not call.is_overlappable]
    assert exposed[:2] == [("all_gather", 2 * 4096), ("reduce_scatter", 4 * 4096)]
    assert len(exposed) == 3  # and the sum of the step


def test_our_adapters_alone_are_reduced_and_the_frozen_table_is_gathered_again_once_a_step():
    recipe = {"adapter": "lora", "lora_rank": 16, "lora_targets": "qv", "global_batch_size": 24}
    plan = native(dp_shard=8, recipe=recipe)
    adapters = 16 * (4096 + 4096) + 16 * (4096 + 1024)
    assert moved(plan, kind="all_gather", phase="forward") == 3 * 2 * (N + 32 * adapters)
    assert moved(plan, kind="all_gather", phase="backward") == 2 * (3 * 31 * (BLOCK + adapters) + TABLE)
    quantised = native(dp_shard=8, recipe=recipe | {"adapter": "qlora"})
    # Dettmers et al., arXiv:2305.14314: half a byte, 8 bits for 64 and 32 bits for 256 of those.
    block = round(BLOCK * (1 / 2 + 1 / 64 + 4 / (64 * 256))) + 2 * adapters
    assert moved(quantised, kind="all_gather", phase="forward") == 3 * (32 * block + 2 * (2 * TABLE + 4096))


def test_routed_experts_of_our_trainer_are_units_over_what_expert_parallelism_leaves():
    plan = native(model=moe_model(), dp_shard=8, ep=4)
    routed = 3 * 128 * 768 * 2048
    scattered = {call.name: call for call in calls_of(plan) if call.kind == "reduce_scatter"}
    assert scattered["reduce-scatter blocks[0] experts"].num_bytes == 4 * routed // 4
    assert scattered["reduce-scatter blocks[0] experts"].group_size == 2
    total = moe_model().num_params - 3 * routed
    assert moved(plan, kind="reduce_scatter") == 4 * (total + 3 * routed // 4)
    (counts,) = shapes_of(plan, "expert counts")
    assert counts == (128 * 8, 3, 4, 1)


@pytest.mark.parametrize("engine", ["fsdp2", "native"])
def test_experts_that_every_rank_holds_are_gathered_with_their_block(engine):
    layout = Layout(dp_shard=8, exchange_gradients=False, spread_vocabulary=False)
    plan = plan_of(layout, model=moe_model(), engine=engine)
    assert moved(plan, kind="all_gather", phase="forward") == 2 * moe_model().num_params


def test_dense_and_routed_weights_of_a_block_are_gathered_over_their_own_groups():
    plan = plan_of(Layout(dp_shard=8, ep=4), model=moe_model())
    routed = 3 * 3 * 128 * 768 * 2048
    dense = moe_model().num_params - routed
    sizes = Counter()
    for call in calls_of(plan):
        if call.phase == "forward" and call.kind == "all_gather":
            sizes[call.group_size] += call.count * call.num_bytes
    assert sizes == {8: 2 * dense, 2: 2 * routed // 4}
    assert moved(plan, kind="reduce_scatter") == 4 * (dense + routed // 4)


def test_hybrid_sharding_sums_a_ranks_shard_over_replicas():
    plan = plan_of(Layout(dp_replicate=2, dp_shard=4))
    assert moved(plan, axis="dp_replicate", phase="backward") == 4 * N // 4
    megatron = plan_of(Layout(dp_replicate=2, dp_shard=4, zero_stage=1), engine="megatron")
    assert moved(megatron, axis="dp_replicate", phase="backward") == pytest.approx(4 * N / 4, rel=1e-6)
    assert {
        call.group_size
        for call in calls_of(plan_of(Layout(dp_replicate=2, dp_shard=4, zero_stage=0)))
        if call.phase == "backward"
    } == {8}


def test_deepspeed_gathers_weights_in_as_many_calls_as_it_reduced_gradients():
    plan = plan_of(Layout(dp_shard=8, zero_stage=1), engine="deepspeed")
    gathers = [call for call in calls_of(plan) if call.kind == "all_gather"]
    assert sum(call.count for call in gathers) == -(-2 * N // 10**9)
    assert sum(call.count * call.num_bytes for call in gathers) == pytest.approx(2 * N, rel=1e-6)


@pytest.mark.parametrize("tp", [1, 4, 16])
def test_context_parallelism_moves_keys_and_values(tp):
    """1,024 tokens of two ranks, 8 heads of keys and of values over tp, of 128 numbers of 2 bytes; 32 of queries.

    torch gathers them whole and again in backward, and passes gradients on in fp32 after every piece; ours keeps what
    it gathered; a ring passes one part; Ulysses sends queries, keys and values, and brings outputs back. Repeated keys
    and values have the heads of queries.
    """
    heads, kv_heads = 32 // tp, max(1, 8 // tp)
    keys = 1024 * 2 * kv_heads * (128 + 128)

    def sent(engine, **recipe):
        plan = plan_of(Layout(cp=2, tp=tp, zero_stage=0), engine=engine, model=shapes.llama_3_8b(2), **recipe)
        calls = [call for call in calls_of(plan) if call.axis == "cp"]
        return Counter({(call.kind, call.phase, call.num_bytes): call.count for call in calls})

    for repeat, heads_sent in ((False, kv_heads), (True, heads)):
        part = 1024 * 2 * heads_sent * (128 + 128)
        assert sent("fsdp2", repeat_kv_heads=repeat) == {
            ("all_gather", "forward", 2 * part): 2,
            ("all_gather", "backward", 2 * part): 2,
            ("send_recv", "backward", 2 * part): 2 * 2,
        }
    assert sent("megatron") == {("send_recv", "forward", keys): 2, ("send_recv", "backward", 2 * keys): 2}
    queries = 1024 * 2 * heads * 128
    assert sent("deepspeed") == {
        (kind, phase, num_bytes): 2
        for kind in ("all_to_all",)
        for phase in ("forward", "backward")
        for num_bytes in (queries + keys, queries)
    }


def test_our_context_parallelism_gathers_once_and_scatters_gradients():
    plan = native(cp=2, model=shapes.llama_3_8b(2))
    calls = {(call.kind, call.phase) for call in calls_of(plan) if call.axis == "cp"}
    assert calls == {("all_gather", "forward"), ("reduce_scatter", "backward")}


def test_tables_of_tensor_parallel_ranks_send_hidden_states_and_three_numbers_a_token():
    plan = plan_of(Layout(tp=4, zero_stage=0))
    assert shapes_of(plan, "vocabulary-parallel loss") == [(2048 * 4, 3, 4, 1)]
    assert shapes_of(plan, "embedding") == [(HIDDEN, 1, 4, 1)]
    assert shapes_of(plan, "head") == [(HIDDEN, 1, 4, 1)]
    divided = plan_of(Layout(tp=4, zero_stage=0, sequence_parallel=True))
    assert shapes_of(divided, "embedding") == [(HIDDEN, 1, 4, 1)] * 2
    assert shapes_of(divided, "head") == [(HIDDEN, 1, 4, 1)] * 2


def test_a_tied_table_of_two_stages_is_divided_over_tensor_parallel_ranks():
    tied = shapes.model(shapes.llama_3_8b().layers[0], num_layers=4, hidden_size=4096, vocab_size=1024, tied=True)
    plan = plan_of(Layout(pp=2, tp=4, zero_stage=0), model=tied)
    assert shapes_of(plan, "tied embedding") == shapes_of(plan, "tied embedding", 1) == [(4 * 256 * 4096, 1, 2, 4)]
    three = plan_of(Layout(pp=4, zero_stage=0), model=tied)
    assert [len(shapes_of(three, "tied embedding", stage)) for stage in range(4)] == [1, 0, 0, 1]


def test_the_norm_is_summed_over_every_axis_that_divides_parameters():
    plan = plan_of(Layout(tp=2, dp_shard=4, dp_replicate=2, pp=2), engine="fsdp2", global_batch_size=16)
    assert shapes_of(plan, "gradient norm") == [(4, 1, 4, 2), (4, 1, 2, 8), (4, 1, 2, 1), (4, 1, 2, 16)]
    own = native(tp=2, dp_shard=4, pp=2, recipe={"global_batch_size": 8})
    assert shapes_of(own, "gradient norm") == [(4 * 8, 1, 16, 1)]
    axes = [
        next(call.axis for call in calls_of(native(**layout)) if call.name == "gradient norm")
        for layout in ({"dp_shard": 2}, {"dp_shard": 2, "dp_replicate": 2}, {"pp": 2, "dp_replicate": 2})
    ]
    assert axes == ["dp_shard", "dp_replicate", "pp"]


def test_sequence_parallel_ranks_sum_gradients_of_norms():
    """Two norms a block and the final one, of which each rank saw a part of the tokens, in fp32."""
    plan = plan_of(Layout(tp=4, zero_stage=0, sequence_parallel=True), engine="megatron")
    assert shapes_of(plan, "gradients of replicated weights") == [(4 * (2 * 32 + 1) * 4096, 1, 4, 1)]
    assert shapes_of(plan_of(Layout(tp=4, zero_stage=0), engine="megatron"), "gradients of replicated") == []
    halves = Layout(tp=4, pp=2, zero_stage=0, sequence_parallel=True)
    first = shapes_of(plan_of(halves, engine="megatron"), "gradients of replicated weights")
    assert first == [(4 * 2 * 16 * 4096, 1, 4, 1)]


def test_copies_of_key_value_heads_are_summed():
    """8 heads on 16 ranks are there twice: keys and values of one head of 128 rows, of 32 blocks."""
    plan = plan_of(Layout(tp=16, zero_stage=0), engine="megatron")
    assert shapes_of(plan, "gradients of copied") == [(4 * 32 * 2 * 128 * 4096, 1, 2, 1)]
    assert shapes_of(plan_of(Layout(tp=8, zero_stage=0), engine="megatron"), "gradients of copied") == []


def test_our_trainer_sums_them_after_they_were_scattered():
    """Each of 4 ranks holds a quarter of the rows."""
    plan = native(tp=2, dp_shard=4, sequence_parallel=True)
    assert shapes_of(plan, "gradients of replicated weights") == [(4 * (2 * 32 + 1) * 4096 // 4, 1, 2, 1)]
    whole = native(tp=2, dp_shard=4, sequence_parallel=True, zero_stage=0)
    assert shapes_of(whole, "gradients of replicated weights") == [(4 * (2 * 32 + 1) * 4096, 1, 2, 1)]


def test_undivided_factors_of_adapters_are_summed():
    """Of q and v, which are divided by output, the factor A of 16 x 4,096 is whole; ranks saw parts of its gradient."""
    recipe = {"adapter": "lora", "lora_rank": 16, "lora_targets": "qv"}
    for engine in ("megatron", "fsdp2"):
        plan = plan_of(Layout(tp=2, zero_stage=0), engine=engine, **recipe)
        assert shapes_of(plan, "gradients of undivided") == [(4 * 32 * 2 * 16 * 4096, 1, 2, 1)]


@pytest.mark.parametrize(("layout", "ranks"), [({"dp_shard": 8}, 8), ({"dp_shard": 4, "cp": 2}, 8)])
def test_our_muon_gathers_every_matrix_once_in_fp32(layout, ranks):
    plan = native(recipe={"optimizer": "muon"}, **layout)
    assert moved(plan, name="all-gather for Newton-Schulz") == 4 * 32 * MATRICES
    assert {size for _, _, size, _ in shapes_of(plan, "all-gather for Newton")} == {ranks}


def test_our_muon_gathers_the_parts_of_both_kinds_of_ranks():
    """First what four ranks cut of the rows of this tensor-parallel rank, then those of the other one. Of matrices
    whose columns tensor parallelism cuts (o and down) first a quarter of the rows becomes whole, then all rows."""
    plan = native(tp=2, dp_shard=4, recipe={"optimizer": "muon"})
    rows = 4096 * 4096 + 4096 * 14_336
    columns = MATRICES - rows
    assert moved(plan, name="all-gather for Newton-Schulz", axis="dp_shard") == 4 * 32 * (columns // 2 + rows)
    assert moved(plan, name="all-gather for Newton-Schulz", axis="tp") == 4 * 32 * (columns + rows // 4)
    whole = native(tp=2, dp_shard=4, zero_stage=0, recipe={"optimizer": "muon"})
    assert moved(whole, name="all-gather for Newton-Schulz", axis="dp_shard") == 0
    padded = native(dp_shard=3, recipe={"optimizer": "muon"}, model=shapes.llama_3_8b(1))
    assert (4 * 3 * 1366 * 4096, 1, 3, 1) in shapes_of(padded, "all-gather for Newton")


def test_our_muon_gathers_experts_over_the_ranks_that_divide_them():
    plan = native(model=moe_model(), dp_shard=8, ep=4, recipe={"optimizer": "muon"})
    routed = 3 * 3 * 128 * 768 * 2048
    assert moved(plan, name="all-gather for Newton-Schulz", axis="ep") == 4 * routed
    attention = 3 * (2 * 2048 * 2048 + 2 * 256 * 2048 + 128 * 2048)
    assert moved(plan, name="all-gather for Newton-Schulz", axis="dp_shard") == 4 * (routed // 4 + attention)


@pytest.mark.parametrize(("layers", "repeated"), [(None, 32), (8, 8)])
def test_recomputed_blocks_alone_communicate_again(layers, repeated):
    plan = plan_of(Layout(tp=4, zero_stage=0), engine="megatron", recompute="full", recompute_layers=layers)
    again = [call for call in calls_of(plan) if call.phase == "recompute"]
    assert sum(call.count for call in again) == 2 * repeated
    assert {call.num_bytes for call in again} == {HIDDEN}


def test_our_recomputation_stops_before_the_last_sum_of_a_block():
    """torch needs nothing more than the input of the last product."""
    plan = native(tp=4, recipe={"recompute": "full"})
    assert sum(call.count for call in calls_of(plan) if call.phase == "recompute") == 32


def test_nothing_below_the_first_adapted_block_has_a_gradient():
    """Two sums a block in backward, but for the first product of the first block."""
    recipe = {"adapter": "lora", "lora_targets": "all-linear"}
    calls = calls_of(native(tp=4, recipe=recipe))
    assert sum(
        call.count for call in calls if call.name.startswith("tensor parallel") and call.phase == "backward"
    ) == (2 * 32 - 1)


def test_parallel_branches_are_one_pair_and_cross_attention_a_third():
    layer = shapes.llama_3_8b().layers[0]
    for changed, pairs in (
        (replace(layer, is_parallel=True), 1),
        (replace(layer, cross_attention=layer.mixer), 3),
        (layer, 2),
    ):
        plan = plan_of(Layout(tp=4, zero_stage=0), model=replace(shapes.llama_3_8b(), layers=(changed,) * 4))
        found = [call for call in calls_of(plan) if call.name.startswith("tensor parallel")]
        assert sum(call.count for call in found) == 4 * 2 * pairs


def test_experts_sum_over_tensor_parallel_ranks_only_where_these_divide_them():
    """One pair for attention; shared experts or divided routed ones add one."""
    layer = moe_model().layers[0]
    shared = replace(layer, feed_forward=replace(layer.feed_forward, shared_intermediate_size=768))
    for layout, changed, pairs in (
        (Layout(tp=2, zero_stage=0), layer, 1),
        (Layout(tp=2, expert_tp=2, zero_stage=0), layer, 2),
        (Layout(tp=2, zero_stage=0), shared, 2),
    ):
        plan = plan_of(layout, model=replace(moe_model(), layers=(changed,) * 3))
        found = [call for call in calls_of(plan) if call.name.startswith("tensor parallel")]
        assert sum(call.count for call in found) == 3 * 2 * pairs


def test_tensor_parallel_ranks_share_the_copies_of_tokens():
    plan = plan_of(Layout(dp_shard=4, tp=2, ep=4), model=moe_model(), routing_imbalance_ratio=1.0)
    assert {call.num_bytes for call in row_exchanges(plan)} == {2048 * 8 // 2 * 2048 * 2}


def test_experts_on_projected_tokens_receive_narrow_ones():
    """Experts of 768 that read 512 of 2,048 numbers."""
    layer = moe_model().layers[0]
    weights = tuple(
        replace(one, shape=tuple(512 if size == 2048 else size for size in one.shape)) if one.is_expert else one
        for one in layer.weights
    )
    model = replace(moe_model(), layers=(replace(layer, weights=weights),) * 3)
    plan = plan_of(Layout(dp_shard=4, ep=4), model=model, routing_imbalance_ratio=1.0)
    assert {call.num_bytes for call in row_exchanges(plan)} == {2048 * 8 * 512 * 2}


def test_ranks_that_hold_the_same_experts_are_as_far_apart_as_experts_reach():
    """Four ranks of experts of two each lie side by side: 8 GPUs."""
    assert Groups(layout=Layout(dp_shard=8, tp=2, ep=4, expert_tp=2)).expert_shards.stride == 8


@pytest.mark.parametrize(("zero_stage", "asked", "num_bytes"), [(3, None, 2), (3, "fp32", 4), (0, None, 4)])
def test_accelerates_fsdp_reduces_in_the_dtype_it_computes_in_and_its_ddp_does_not(zero_stage, asked, num_bytes):
    layout = Layout(dp_shard=4, zero_stage=3) if zero_stage else Layout(dp_replicate=4, zero_stage=0)
    plan = plan_of(layout, engine="accelerate", **({"reduce_dtype": asked} if asked else {}))
    reduced = sum(one.num_bytes * one.count for one in calls_of(plan) if one.kind in ("reduce_scatter", "all_reduce"))
    assert reduced == pytest.approx(num_bytes * plan.model.num_params, rel=0.01)
