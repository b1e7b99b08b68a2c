"""Components whose true size is known."""

import pytest

from shardwise.predict.memory import predict_memory
from shardwise.step.layer_placement import pipeline_stages
from shardwise.validate.components import component_comparisons, megatron_state_bytes
from shardwise.validate.shipped_runs import measured_runs


@pytest.fixture(scope="module")
def comparisons():
    return component_comparisons(predict_memory)


def test_megatron_states_of_a_truncated_llama_are_counted_by_hand():
    """SIMUB200-003: 12 blocks and two padded tables over tp 4, norms replicated; 6 + 12 / 2 bytes each.

    A block's matrices have 855,638,016 parameters, its two norms 16,384; a table 128,512 rows of 8,192.
    """
    run = next(run for run in measured_runs().runs if run.id == "SIMUB200-003")
    stage = pipeline_stages(model=run.plan.model, layout=run.plan.layout)[0]
    held = 12 * (855_638_016 // 4 + 16_384) + 2 * 128_512 * 8_192 // 4 + 8_192
    assert megatron_state_bytes(run.plan, stage) == 12 * held


def test_model_states_are_ours_within_one_percent_of_their_true_size(comparisons):
    for comparison in comparisons:
        if comparison.component in ("model_states", "weights_and_optimizer"):
            assert abs(comparison.predicted_error_fraction) < 0.01, comparison.run_id


@pytest.mark.parametrize("component", ["model_states", "activations_and_temporaries", "weights_and_optimizer"])
def test_ours_is_closest_on_every_component(comparisons, component):
    ours: list[float] = []
    peers: dict[str, list[float]] = {}
    for comparison in comparisons:
        if comparison.component == component:
            ours.append(abs(comparison.predicted_error_fraction))
            for name, num_bytes in comparison.peers:
                peers.setdefault(name, []).append(abs(num_bytes / comparison.true_bytes - 1))
    own_mean = sum(ours) / len(ours)
    assert peers
    for name, errors in peers.items():
        assert own_mean <= sum(errors) / len(errors) + 1e-4, name
