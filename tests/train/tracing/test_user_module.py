"""A user's own module: traced as it is, or refused with what to change."""

import pytest

from shardwise.errors import ShardwiseError
from shardwise.train.tracing.step_record import traced_step
from shardwise.train.tracing.user_module import module_factory
from train.models import make_job

PLACE = "train.tracing.own_modules"


def trace(name: str, **options):
    job = make_job(**{"layout": {"dp_shard": 2}, "micro_batch_size": 1, **options})
    return traced_step(job, module_factory(f"{PLACE}:{name}"))


def test_a_stack_of_layers_is_gathered_layer_by_layer():
    """48 x 48 weights of 4 bytes in each of three layers; table and head stay with the root."""
    (stage,) = trace("Stack").stages
    calls = {(call.kind, call.phase, call.unit): (call.num_bytes, call.count) for call in stage.collectives}
    assert stage.num_blocks == 3
    assert calls["reduce_scatter", "backward", "inner.layers.*"] == (48 * 48 * 4, 3 * 4)
    assert calls["reduce_scatter", "backward", "root"] == (2 * 96 * 48 * 4, 4)
    assert calls["all_gather", "forward", "inner.layers.*"] == (48 * 48 * 4, 3 * 4)


def test_its_gradients_and_moments_are_counted():
    (stage,) = trace("Stack").stages
    optimizer = dict(stage.phases[-1].components)
    assert optimizer["gradients"] >= (3 * 48 * 48 + 2 * 96 * 48) * 4 // 2


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("raising", "trace-module", "no weights here"),
        ("no_module", "trace-module", "not a torch.nn.Module"),
        ("missing", "trace-module", "no function 'missing'"),
        ("Deciding", "trace-values", "own_modules.py"),
        ("Wrong", "trace-module", "own_modules.py"),
        ("Silent", "trace-module", "neither logits nor a loss"),
    ],
)
def test_what_cannot_be_traced_is_said_with_its_line(name, code, words):
    with pytest.raises(ShardwiseError, match=words) as caught:
        trace(name)
    assert caught.value.code == code
    assert caught.value.fix


@pytest.mark.parametrize("text", ["nothing", ":factory", "no_such_package_at_all:make"])
def test_a_name_that_leads_nowhere_is_refused(text):
    with pytest.raises(ShardwiseError) as caught:
        module_factory(text)
    assert caught.value.code == "trace-module"


def test_axes_that_divide_a_module_are_refused():
    with pytest.raises(ShardwiseError, match="tp divide") as caught:
        trace("Stack", layout={"tp": 2})
    assert caught.value.code == "train-transformers-layout"
