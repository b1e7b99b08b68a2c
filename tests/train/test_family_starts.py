"""Families begin, and lose, as transformers' own classes do: ten of them here, all of them in ``make families``."""

import pytest
import torch
from torch import nn

from shardwise.errors import ModelError
from shardwise.families.table import FAMILIES
from shardwise.launch.transformers_models import WITHOUT_CLASS
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.model import Decoder
from shardwise.train.family_initialise import fill_as_family
from shardwise.train.initialise import initialise
from train.family_starts import (
    CPU,
    built,
    from_config,
    loss_differs,
    seed_differs,
    start_differs,
    started,
    tensors,
    unlike,
)
from train.tiny_families import families, tiny_fields

TEN = (
    "apertus",
    "bloom",
    "gemma",
    "gpt2",
    "gpt_oss",
    "llama4_text",
    "mamba",
    "modernbert-decoder",
    "qwen3_next",
    "zamba2",
)
"""Numbers written in a constructor; norms of LayerNorm; norms that begin at zero; residual scaling; sinks; a base model
that is not called by its prefix; state-space constants; a head with a norm; two kinds of attention; tied blocks."""
ASKED = tuple(name for name in families() if name in FAMILIES and name not in WITHOUT_CLASS)
OWN = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
PROBES = (start_differs, seed_differs, loss_differs)


@pytest.mark.parametrize("family", TEN)
@pytest.mark.parametrize("probe", [start_differs, loss_differs], ids=lambda probe: probe.__name__)
def test_a_family_begins_and_loses_as_its_class_does(family, probe):
    assert probe(tiny_fields(family)) is None


@pytest.mark.parametrize("family", ["gpt2", "mamba", "zamba2"])
def test_values_follow_from_the_seed_and_from_no_order_of_filling(family):
    assert seed_differs(tiny_fields(family)) is None


def test_modules_draw_from_streams_of_their_own():
    values = tensors(started(tiny_fields("gpt2"), seed=0))
    first, second = (values[f"transformer.h.{index}.mlp.c_fc.weight"] for index in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.families
@pytest.mark.parametrize("family", ASKED)
def test_every_family_begins_and_loses_as_its_class_does(family):
    assert [found for probe in PROBES if (found := probe(tiny_fields(family)))] == []


def own_start(fields, *, seed):
    """The tensors of our own decoder with their initial values."""
    config = read_config(fields)
    with torch.device("meta"):
        decoder = Decoder(config, layers=range(config.num_hidden_layers))
    initialise(decoder, prefix="", device=CPU, seed=seed, std=decoder.initializer_ratio)
    return {name: parameter.detach() for name, parameter in decoder.named_parameters()}


@pytest.mark.parametrize("extra", [{}, {"pad_token_id": 5}, {"pad_token_id": -1, "tie_word_embeddings": True}], ids=str)
@pytest.mark.parametrize("family", OWN)
def test_our_own_decoder_begins_as_the_family_does(family, extra):
    fields = {**tiny_fields(family), "use_sliding_window": False, "initializer_range": 0.05, **extra}
    ours = own_start(fields, seed=0)
    first, second = (tensors(from_config(fields, seed=seed)) for seed in (0, 1))
    assert {name for name in ours if name not in first} == set()
    assert [found for name in ours if (found := unlike(name, ours[name], first[name], second[name]))] == []


def test_an_initializer_range_of_zero_is_what_transformers_takes_for_it():
    fields = {**tiny_fields("llama"), "initializer_range": 0}
    assert own_start(fields, seed=0)["lm_head.weight"].std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensor: tensor * 1.2,
        lambda tensor: tensor + 0.2 * tensor.std(),
        lambda tensor: tensor.sign() * tensor.std(),
        lambda tensor: torch.where(tensor.abs() > 0, tensor, 1.0),
        lambda tensor: tensor[1:],
        lambda tensor: tensor.double(),
    ],
    ids=["wider", "shifted", "of two values", "without its row of zeros", "smaller", "of another type"],
)
def test_what_is_distributed_otherwise_is_noticed(spoil):
    first, second, ours = (torch.randn(64, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    for tensor in (first, second, ours):
        tensor[3] = 0
    assert unlike("it", ours, first, second) is None
    assert unlike("it", spoil(ours), first, second)


def test_a_weight_that_the_class_leaves_without_a_value_is_refused():
    decoder = built(tiny_fields("gpt2"))
    for model in (decoder, decoder.untouched[0]):
        model.transformer.ln_f.extra = nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(ModelError, match=r"gives transformer[.]ln_f[.]extra no initial value"):
        fill_as_family(decoder.untouched[0], decoder, device=CPU)


@pytest.mark.parametrize(
    ("family", "extra", "is_plain"),
    [
        ("llama", {}, True),
        ("mamba", {}, True),
        ("opt", {}, True),
        ("granite", {"logits_scaling": 1.0}, True),
        ("granite", {"logits_scaling": 2.0}, False),
        ("gemma2", {}, False),
        ("gemma2", {"final_logit_softcapping": None}, True),
        ("recurrent_gemma", {}, False),
        ("cohere", {}, False),
        ("phi", {}, False),
        ("modernbert-decoder", {}, False),
    ],
    ids=str,
)
def test_only_a_head_that_the_class_does_nothing_around_is_multiplied_in_pieces(family, extra, is_plain):
    assert (built({**tiny_fields(family), **extra}).loss_head is not None) == is_plain


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_dropout_of_the_class_is_on_in_training_alone(family):
    decoder = built(tiny_fields(family))
    assert decoder.whole[0].training
    assert not decoder.eval().whole[0].training
