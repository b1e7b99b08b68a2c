"""Published and measured activation coefficients."""

import pytest

from shardwise.course.formulas import activations

GPT3 = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 12288}
MT_NLG = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 20480}


@pytest.mark.parametrize(("shape", "heads", "published"), [(GPT3, 96, 80), (MT_NLG, 128, 64)])
def test_scores_weigh_as_korthikanti_section_5_says(shape, heads, published):
    """arXiv:2205.05198 section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG."""
    whole = activations.block_activation_bytes(**shape, num_attention_heads=heads)
    sbh = shape["seq_len"] * shape["hidden_size"]
    assert whole / sbh == 34 + published
