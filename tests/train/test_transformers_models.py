"""Models that transformers builds: the second road to our decoder's numbers, and families we have no decoder for."""

from dataclasses import replace

import pytest

from train.models import GEMMA, LLAMA, MIXTRAL, make_job
from train.world_member import run

RELATIVE = 1e-5


@pytest.mark.parametrize(("name", "model"), [("llama", LLAMA), ("mixtral", MIXTRAL)])
def test_our_decoder_computes_what_transformers_computes(worlds, alone, name, model):
    job = replace(make_job(model=model), implementation="transformers")
    result = worlds[1].run(run, job)[0]
    assert result.losses == pytest.approx(alone[name].losses, rel=RELATIVE)
    assert result.norms == pytest.approx(alone[name].norms, rel=10 * RELATIVE)


@pytest.mark.parametrize(
    ("layout", "recipe"),
    [
        ({"dp_shard": 2}, {}),
        ({"dp_shard": 2}, {"recompute": "full"}),
        ({"dp_shard": 2, "zero_stage": 1}, {}),
        ({"dp_replicate": 2, "zero_stage": 0}, {}),
    ],
    ids=str,
)
def test_a_family_without_a_decoder_of_ours_trains_alike_on_every_layout(worlds, curve, layout, recipe):
    expected = curve(1, model=GEMMA)
    for result in worlds[2].run(run, make_job(model=GEMMA, layout=layout, **recipe)):
        assert result.losses == pytest.approx(expected.losses, rel=RELATIVE)
    assert expected.losses[-1] < expected.losses[0]


def test_the_inside_of_such_a_model_is_not_divided(worlds):
    with pytest.raises(AssertionError, match="divide the inside of a model"):
        worlds[2].run(run, make_job(model=GEMMA, layout={"tp": 2}))


GEMMA2 = {
    "model_type": "gemma2",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def test_a_model_that_has_eager_attention_alone_trains_with_it(worlds):
    result = worlds[1].run(run, make_job(model=GEMMA2, attention="eager"))[0]
    assert result.losses[-1] < result.losses[0]
