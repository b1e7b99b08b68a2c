"""What one rank of our trainer holds and moves that keeps weights in two halves (``train/halves.py``)."""

import shapes
from shardwise.layout import Layout
from shardwise.predict.memory import most_bytes
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext
from step.moments import alive


def moved(plan):
    context = StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=plan.layout)[0])
    return {operation.name: operation.num_bytes for operation in stage_operations(context)}


def test_a_rank_that_keeps_halves_casts_nothing_and_reads_bf16_gradients():
    """AdamW: halves (4 bytes), moments (8) and a gradient (2) read, all but the gradient written."""
    one = shapes.plan(shapes.llama_3_8b(), layout=Layout())
    elements = one.model.num_params
    found = moved(one)
    assert "autocast copies" not in found
    assert found.get("gradient accumulation", 0) == 0
    assert found["update"] == (2 * 4 + 2 * 8 + 2) * elements
    assert found["gradient norm"] == 2 * elements
    four = moved(shapes.plan(shapes.llama_3_8b(), layout=Layout(), global_batch_size=4))
    assert four["gradient accumulation"] == (2 + 4 + 3 * 4 * 3 / 4) * elements
    assert four["update"] == (2 * 4 + 2 * 8 + 4) * elements


def test_a_rank_that_keeps_halves_gathers_and_reduces_nothing():
    """Weights in 2 + 2 bytes and moments in 8; gradients of one micro-batch in 2, of several in 4."""
    for batch, gradient_bytes in ((1, 2), (4, 4)):
        plan = shapes.plan(shapes.llama_3_8b(), layout=Layout(), global_batch_size=batch)
        elements = plan.model.num_params
        assert set(alive(plan, "gathered_parameters", "communication_buffers")) == {0}
        found = [most_bytes(plan, component) for component in ("parameters", "optimizer", "gradients")]
        assert found == [4 * elements, 8 * elements, gradient_bytes * elements]
