"""Models that transformers builds: the second road to our decoder's numbers, and families we have no decoder for."""

from dataclasses import replace

import pytest

from train.models import GEMMA, LLAMA, MIXTRAL, make_job
from train.tiny_families import tiny_fields
from train.world_member import run

RELATIVE = 1e-5


@pytest.mark.parametrize(("name", "model"), [("llama", LLAMA), ("mixtral", MIXTRAL)])
def test_our_decoder_computes_what_transformers_computes(worlds, alone, name, model):
    job = replace(make_job(model=model), implementation="transformers")
    result = worlds[1].run(run, job)[0]
    assert result.losses == pytest.approx(alone[name].losses, rel=RELATIVE)
    assert result.norms == pytest.approx(alone[name].norms, rel=10 * RELATIVE)


PADDED = {**LLAMA, "num_hidden_layers": 2, "pad_token_id": 7}


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"dp_shard": 2, "spread_vocabulary": True}], ids=str)
def test_the_row_of_padding_begins_and_stays_as_in_transformers(worlds, layout):
    theirs = worlds[1].run(run, replace(make_job(model=PADDED, num_steps=3), implementation="transformers"))[0]
    ours = worlds[2 if layout else 1].run(run, make_job(model=PADDED, layout=layout, num_steps=3))[0]
    assert ours.losses == pytest.approx(theirs.losses, rel=RELATIVE)
    assert ours.norms == pytest.approx(theirs.norms, rel=10 * RELATIVE)


@pytest.mark.parametrize("family", ["gpt2", "zamba2"])
def test_families_whose_weights_begin_in_their_own_way_begin_alike_on_every_layout(worlds, family):
    """Residual matrices of GPT-2 begin smaller; blocks of Zamba 2 are tied, so that no rank may divide them apart."""
    model = {**tiny_fields(family), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    alone = worlds[1].run(run, make_job(model=model, attention="eager", num_steps=3))[0]
    for layout in ({"dp_shard": 2}, {"dp_replicate": 2, "zero_stage": 0}):
        shared = worlds[2].run(run, make_job(model=model, attention="eager", num_steps=3, layout=layout))[0]
        assert shared.losses == pytest.approx(alone.losses, rel=RELATIVE)
        assert shared.norms == pytest.approx(alone.norms, rel=10 * RELATIVE)


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


def test_what_no_family_is_divided_along_is_refused_by_ranks_too(worlds):
    with pytest.raises(AssertionError, match="cp divide the inside of a model, which our trainer does not do to gemma"):
        worlds[2].run(run, make_job(model=GEMMA, layout={"cp": 2}))


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
