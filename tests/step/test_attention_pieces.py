"""What attention moves and computes besides its fused kernel: unaligned products, repeated heads, merged pieces."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext

LLAMA = shapes.llama_3_8b()


def operations_of(model=LLAMA, *, engine="native", layout=None, **recipe):
    layout = layout or Layout(zero_stage=0)
    plan = Plan(
        model=model,
        cluster=shapes.cluster(layout.world_size),
        recipe=Recipe(**{"seq_len": 8192, "recompute": "none"} | recipe),
        layout=layout,
        engine=engine,
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    return tuple(stage_operations(StageContext(plan=plan, stage=stage)))


@pytest.mark.parametrize(("changes", "num_products"), [({}, 0), ({"head_dim": 108}, 2), ({"v_head_dim": 108}, 2)])
def test_unaligned_heads_take_products_out_of_the_traffic_of_scores(changes, num_products):
    """Rows of 108 numbers are 216 bytes; both products of forward have the whole square, whatever the mask."""
    layer = LLAMA.layers[0]
    mixer = replace(layer.mixer, **changes)
    model = replace(LLAMA, layers=(replace(layer, mixer=mixer),) * 32)
    core = next(o for o in operations_of(model, attention="eager") if o.kind == "attention")
    scores = 32 * 8192**2
    assert core.unaligned_flop == num_products * (mixer.head_dim + mixer.v_head_dim) * scores
    assert core.num_bytes == round((14 - 2.2 * num_products) * scores)


def test_rings_merge_every_piece_but_the_first():
    """2,048 tokens a rank, three more pieces: 12 bytes an output and query, 20 a key and value, eagerly 36 an output.

    8 of 32 heads have keys and values, unless these are repeated, which writes them once and reads their gradients.
    """
    layout = Layout(cp=4, zero_stage=0)

    def moved(name, engine="fsdp2", **recipe):
        operations = operations_of(engine=engine, layout=layout, **recipe)
        return [o.num_bytes / (2048 * 128) for o in operations if o.name.startswith(f"attention.{name}")]

    assert moved("merged", compile=True) == [3 * 12 * 32, 3 * (12 * 32 + 20 * 16)]
    assert moved("merged", compile=False) == [3 * 36 * 32, 3 * (12 * 32 + 20 * 16)]
    assert moved("merged", compile=True, repeat_kv_heads=True)[1] == 3 * (12 * 32 + 20 * 64)
    assert moved("repeated", repeat_kv_heads=True) == [2 * 64, 2 * 64]
    assert moved("merged", engine="megatron") == [3 * 6 * 32, 3 * 6 * (32 + 16)]
    assert not [*moved("merged", engine="deepspeed"), *moved("merged", engine="native"), *moved("repeated")]
