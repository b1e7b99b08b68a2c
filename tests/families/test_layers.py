"""Layers: shared when equal, in the right order, with the right windows, positions and stacks."""

import pytest

from shardwise.families import read_model
from shardwise.model import AttentionSpec, DenseSpec, MambaSpec, MoeSpec


def attentions(name):
    return [layer.mixer for layer in read_model(name).layers if isinstance(layer.mixer, AttentionSpec)]


def windows(name):
    return [attention.sliding_window for attention in attentions(name)]


def test_equal_layers_are_one_object():
    model = read_model("llama-3.1-405b")
    assert model.num_hidden_layers == 126
    assert len({id(layer) for layer in model.layers}) == 1
    assert model.layer_runs == ((model.layers[0], 126),)


def test_deepseek_v3_has_three_dense_blocks_before_its_sparse_ones():
    runs = read_model("deepseek-v3").layer_runs
    assert [count for _, count in runs] == [3, 58]
    assert isinstance(runs[0][0].feed_forward, DenseSpec)
    assert isinstance(runs[1][0].feed_forward, MoeSpec)
    assert runs[1][0].feed_forward.shared_intermediate_size == 2048


def test_every_second_block_of_maverick_has_experts():
    kinds = [isinstance(layer.feed_forward, MoeSpec) for layer in read_model("llama-4-maverick").layers]
    assert kinds == [False, True] * 24


def test_gemma_2_alternates_local_and_global_attention():
    assert windows("gemma-2-9b") == [4096, None] * 21


def test_gemma_3_attends_globally_in_every_sixth_block():
    assert windows("gemma-3-1b") == ([512] * 5 + [None]) * 4 + [512] * 2


def test_gpt_oss_alternates_a_window_of_128():
    assert windows("gpt-oss-20b") == [128, None] * 12


def test_olmo_3_has_three_local_blocks_for_each_global_one():
    assert windows("olmo-3-7b") == ([4096] * 3 + [None]) * 8


def test_mistral_7b_slides_everywhere_and_its_third_version_nowhere():
    assert windows("mistral-7b-v0.1") == [4096] * 32
    assert windows("mistral-7b-v0.3") == [None] * 32


def test_qwen_2_ignores_its_window_unless_told_to_use_it():
    config = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 11, "max_window_layers": 3}
    assert {layer.mixer.sliding_window for layer in read_model(config).layers} == {None}
    used = read_model(config | {"use_sliding_window": True})
    assert [layer.mixer.sliding_window for layer in used.layers] == [None, None, None, 11]


def test_layer_types_of_the_config_win():
    types = ["full_attention", "sliding_attention", "full_attention"]
    config = {"model_type": "gemma2", "num_hidden_layers": 3, "layer_types": types, "sliding_window": 7}
    assert [layer.mixer.sliding_window for layer in read_model(config).layers] == [None, 7, None]


def test_llama_4_rotates_in_three_of_four_blocks_and_attends_in_chunks_there():
    found = attentions("llama-4-scout")
    assert [attention.has_rotary for attention in found[:4]] == [True, True, True, False]
    assert [attention.sliding_window for attention in found[:4]] == [8192, 8192, 8192, None]


def test_gpt_neo_reads_its_pattern_of_local_layers():
    config = {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global", "local"], 2]]}
    assert [layer.mixer.sliding_window for layer in read_model(config).layers] == [None, 256, None, 256]


@pytest.mark.parametrize("name", ["gpt2", "opt-13b", "bloom-176b", "mpt-7b", "bert-base", "t5-base", "jamba-v0.1"])
def test_models_without_rotary_positions_say_so(name):
    assert not any(attention.has_rotary for attention in attentions(name))


@pytest.mark.parametrize(
    ("name", "parallel"), [("gpt-j-6b", True), ("aya-23-8b", True), ("falcon-40b", True), ("gpt2", False)]
)
def test_parallel_blocks_are_marked(name, parallel):
    assert read_model(name).layers[0].is_parallel is parallel


def test_falcon_40b_has_two_input_norms_and_falcon_7b_one():
    assert read_model("falcon-40b").layers[0].num_norms == 2
    assert read_model("falcon-7b").layers[0].num_norms == 1


def test_jamba_mixes_one_attention_block_into_seven_mamba_blocks():
    mixers = [type(layer.mixer) for layer in read_model("jamba-v0.1").layers]
    assert mixers[:8] == [MambaSpec] * 4 + [AttentionSpec] + [MambaSpec] * 3
    assert mixers == mixers[:8] * 4


def test_nemotron_blocks_are_one_half_of_a_usual_block():
    model = read_model("nemotron-3-nano")
    assert {(layer.mixer is None) != (layer.feed_forward is None) for layer in model.layers} == {True}
    assert model.num_hidden_layers == 52


def test_mamba_has_no_feed_forward_part():
    layer = read_model("mamba-130m").layers[0]
    assert layer.feed_forward is None
    assert layer.mixer == MambaSpec(version=1, intermediate_size=1536, state_size=16, conv_kernel=4, time_step_rank=48)


def test_t5_has_encoder_blocks_before_decoder_blocks():
    model = read_model("t5-base")
    assert [layer.stack for layer in model.layers] == ["encoder"] * 12 + ["decoder"] * 12
    encoder, decoder = model.layers[5], model.layers[17]
    assert not encoder.mixer.is_causal
    assert encoder.cross_attention is None
    assert decoder.mixer.is_causal
    assert decoder.cross_attention is not None
    assert not decoder.cross_attention.is_causal


def test_encoders_attend_in_both_directions():
    assert not any(attention.is_causal for attention in attentions("bert-large"))


def test_llama_vision_attends_to_the_image_in_eight_blocks():
    layers = read_model("llama-3.2-11b-vision").layers
    cross = [index for index, layer in enumerate(layers) if layer.mixer is None]
    assert cross == [3, 8, 13, 18, 23, 28, 33, 38]
    assert all(layers[index].cross_attention is not None for index in cross)


def test_latent_attention_keeps_its_ranks_and_widths():
    attention = read_model("deepseek-v3").attention
    assert attention.kind == "mla"
    assert (attention.head_dim, attention.v_head_dim, attention.qk_rope_head_dim) == (192, 128, 64)
    assert (attention.q_lora_rank, attention.kv_lora_rank) == (1536, 512)
    assert read_model("deepseek-v2-lite").attention.q_lora_rank is None


@pytest.mark.parametrize(
    ("name", "attention", "hidden"),
    [
        ("gpt2", 0.1, 0.1),
        ("opt-13b", 0.0, 0.1),
        ("llama-3.1-8b", 0.0, 0.0),
        ("bert-base", 0.1, 0.1),
        ("t5-base", 0.1, 0.1),
        ("starcoder2-7b", 0.1, 0.1),
        ("gpt-neox-20b", 0.0, 0.0),
    ],
)
def test_dropout_is_the_configs_or_the_familys_own(name, attention, hidden):
    model = read_model(name)
    assert (model.attention_dropout_fraction, model.hidden_dropout_fraction) == (attention, hidden)


def test_gemma_4_has_wider_heads_and_no_values_in_its_global_blocks():
    model = read_model("gemma-4-31b")
    local, world = model.layers[0], model.layers[5]
    assert (local.mixer.head_dim, world.mixer.head_dim) == (256, 512)
    assert (local.mixer.sliding_window, world.mixer.sliding_window) == (1024, None)
    assert any("v_proj" in weight.name for weight in local.weights)
    assert not any("v_proj" in weight.name for weight in world.weights)


def test_glm_5_2_picks_tokens_anew_in_a_quarter_of_its_later_blocks():
    def indexed(name):
        return [any("indexer" in weight.name for weight in layer.weights) for layer in read_model(name).layers]

    assert all(indexed("glm-5"))
    assert indexed("glm-5.2") == [index < 3 or index % 4 == 2 for index in range(78)]
