"""What a re-enactment refuses, and the mistakes that it would show."""

from dataclasses import replace

import numpy as np
import pytest

from course.numerics.reenacted import EXACT, ROUNDING, both, some_batches
from shapes import llama_3_8b, plan
from shardwise.course.numerics.divided_products import product_errors
from shardwise.course.numerics.reenact import Options, gradient_error, one_device, reenact
from shardwise.course.numerics.tiny_model import initial_weights, require_plain, tiny_model
from shardwise.errors import LayoutError, ModelError, RecipeError, SimulationError
from shardwise.families import read_model
from shardwise.layout import Layout


def test_weights_given_are_not_changed():
    made = plan(tiny_model(), layout=Layout(dp_shard=2, zero_stage=1), seq_len=8, global_batch_size=2)
    weights = initial_weights(made.model)
    before = {key: array.copy() for key, array in weights.items()}
    reenact(made, weights, some_batches(made.model, 2, 8, 2))
    assert all((weights[key] == before[key]).all() for key in weights)


def test_training_lowers_the_loss():
    model = tiny_model()
    made = plan(model, layout=Layout(dp_shard=2, zero_stage=3), seq_len=16, global_batch_size=4)
    batch = some_batches(model, 4, 16, 1)[0]
    losses = reenact(made, initial_weights(model), [batch] * 12).losses
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-h2", "zbv"])
@pytest.mark.parametrize(("pp", "micro_batches"), [(2, 5), (4, 8), (3, 7)])
def test_every_order_of_passes_gives_the_gradients_of_one_device(schedule, pp, micro_batches):
    model = tiny_model(num_hidden_layers=2 * pp)
    layout = Layout(pp=pp, schedule=schedule, zero_stage=0)
    result = both(layout, engine="megatron", model=model, num_microbatches=micro_batches)
    assert result.error < EXACT


@pytest.mark.parametrize(("schedule", "vpp"), [("gpipe", 1), ("interleaved", 2), ("dualpipev", 1)])
def test_torchs_schedules_do_too(schedule, vpp):
    layout = Layout(pp=2, vpp=vpp, schedule=schedule, dp_shard=2, zero_stage=3)
    model = tiny_model(num_hidden_layers=4)
    result = both(layout, engine="torchtitan", model=model, num_microbatches=8, compile=False)
    assert result.error < EXACT


def test_uneven_stages_do_too():
    layout = Layout(pp=2, stage_layers=(1, 3), zero_stage=0)
    result = both(layout, engine="fsdp2", model=tiny_model(num_hidden_layers=4), num_microbatches=3)
    assert result.error < EXACT


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_divided_products_are_whole_up_to_rounding(num_ranks):
    assert max(product_errors(num_ranks=num_ranks, width=96, dtype="float64")) < EXACT
    assert max(product_errors(num_ranks=num_ranks, width=96, dtype="float32")) < ROUNDING


def test_a_gradient_that_is_divided_by_ranks_alike_is_found():
    """The mistake the seeds make: uneven parts, each averaged over its own tokens."""
    model = tiny_model()
    made = plan(model, layout=Layout(zero_stage=0), seq_len=16, global_batch_size=1)
    weights, (batch,) = initial_weights(model), some_batches(model, 3, 16, 1)
    parts = [one_device(made, weights, [part]) for part in (batch.rows(0, 1), batch.rows(1, 3))]
    whole = one_device(made, weights, [batch])
    alike = {key: np.mean([part.gradients[key] for part in parts], axis=0) for key in weights}
    assert gradient_error(replace(whole, gradients=alike), whole) > 1e-2


def test_a_broken_rule_is_refused_with_a_neighbour():
    made = plan(tiny_model(), layout=Layout(tp=3), seq_len=8, global_batch_size=1)
    with pytest.raises(LayoutError) as refused:
        reenact(made, initial_weights(made.model), some_batches(made.model, 1, 8, 1))
    assert refused.value.code == "layout-heads-over-tp"
    assert refused.value.fix


def test_shares_that_are_not_the_batch_are_refused():
    made = plan(tiny_model(), layout=Layout(dp_shard=2, zero_stage=0), seq_len=8, global_batch_size=2)
    options = Options(shares=((2,), (0,)))
    with pytest.raises(RecipeError) as refused:
        reenact(made, initial_weights(made.model), some_batches(made.model, 2, 8, 1), options)
    assert refused.value.code == "simulate-batch"


def test_experts_under_tensor_parallelism_need_sequence_parallelism():
    made = plan(tiny_model(num_experts=4), layout=Layout(tp=2, zero_stage=0), seq_len=8, global_batch_size=1)
    with pytest.raises(SimulationError) as refused:
        reenact(made, initial_weights(made.model), some_batches(made.model, 1, 8, 1))
    assert refused.value.code == "simulate-layout"


@pytest.mark.parametrize("name", ["gpt2", "gemma-2-9b", "deepseek-v3"])
def test_models_with_other_parts_are_refused(name):
    with pytest.raises(ModelError) as refused:
        require_plain(read_model(name))
    assert refused.value.code == "simulate-model"


def test_real_llamas_could_be_trained():
    require_plain(read_model("llama-3.1-8b"))
    assert llama_3_8b().num_params == read_model("llama-3.1-8b").num_params
