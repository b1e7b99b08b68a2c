"""What our trainer's own functions issue where nothing compiles them, against their lines."""

import pytest

from step.test_operations import by_name, fp8_plan, operations_of, plan_of

TOKENS, WEIGHTS = 8192, 218_103_808
"""Matrices of one block of Llama 3 8B."""
INPUTS = TOKENS * (4 * 4096 + 2 * 4096 + 14336)
OUTPUTS = TOKENS * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)


def test_both_sides_of_an_eager_8_bit_product_are_rounded_for_it_alone():
    """33 bytes a number; 2 more of what is read the other way: the weight for inputs, both sides for weights."""
    casts = by_name(fp8_plan(compile=False))
    assert casts["fp8 casts"].num_bytes == 33 * (INPUTS + WEIGHTS)
    transposed = WEIGHTS + INPUTS + OUTPUTS
    assert casts["fp8 casts.backward"].num_bytes == 33 * (2 * OUTPUTS + WEIGHTS + INPUTS) + 2 * transposed


def test_a_gpu_rounds_far_more_by_eager_kernels_than_by_compiled_ones():
    eager, compiled = by_name(fp8_plan(compile=False)), by_name(fp8_plan(compile=True))
    assert eager["fp8 casts"].num_bytes > 6 * compiled["fp8 casts"].num_bytes
    assert eager["fp8 casts"].num_kernels == 32  # seven products, twice nine kernels, four bare ones to a call
    assert eager["fp8 casts.backward"].num_kernels == 69  # one transposition more for inputs, two more for weights


def test_eager_4_bit_weights_are_unpacked_by_several_kernels():
    found = by_name(plan_of(adapter="qlora", compile=False))
    assert found["dequantise"].num_bytes == found["dequantise.backward"].num_bytes == 10.5 * WEIGHTS
    assert by_name(plan_of(adapter="qlora", compile=True))["dequantise"].num_bytes == 2.5 * WEIGHTS


def test_an_eager_adapter_adds_to_its_product_and_to_its_gradients():
    """6 bytes an output forward; 4 an output and 6 an input backward; three and four kernels a matrix."""
    found = by_name(plan_of(adapter="lora", lora_rank=8, lora_targets="all-linear", compile=False))
    forward, backward = found["adapter sums"], found["adapter sums.backward"]
    assert forward.num_bytes == 6 * OUTPUTS
    assert backward.num_bytes == 4 * OUTPUTS + 6 * INPUTS
    assert (forward.num_kernels, backward.num_kernels) == (21, 28)


@pytest.mark.parametrize("settings", [{"compile": True}, {"engine": "fsdp2", "compile": False}], ids=str)
def test_only_our_eager_runtime_is_counted_so(settings):
    plan = plan_of(adapter="lora", lora_targets="all-linear", **settings)
    assert "adapter sums" not in {operation.name for operation in operations_of(plan)}


def test_eager_8_bit_moments_cost_our_runtime_a_chain_of_kernels():
    """Weight and gradient 12 bytes a parameter, moments 230; a fused kernel of others moves 4 for the moments."""
    ours, theirs = (
        next(o for o in operations_of(plan_of(optimizer="adamw-8bit", engine=engine)) if o.name == "update")
        for engine in ("native", "fsdp2")
    )
    assert ours.num_bytes == pytest.approx(8_030_261_248 * 242, rel=1e-6)
    assert theirs.num_bytes < ours.num_bytes / 10
