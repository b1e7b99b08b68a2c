"""Why-is-it-slow questions of real threads: utilisations over the wrong peak, traps of sharding, costs."""

import pytest

from shardwise.catalog import load_gpu, read_cluster
from shardwise.course.formulas.flop_counts import llm_foundry_flop_per_token, palm_flop_per_token, recompute_flop_ratio
from shardwise.explain.cautions import cautions
from shardwise.explain.utilisation import explain_utilisation
from shardwise.families import read_model
from shardwise.formulas.flop_counts import six_n_flop_per_token
from shardwise.formulas.run_cost import run_usd
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe


def utilisation(findings):
    return next(number.value for number in findings[0].numbers if number.name == "utilisation")


def test_s11_104_per_cent_was_divided_by_another_parts_peak():
    """karpathy/nanoGPT 464: 104 % of 312 TFLOP/s on an H100 are 32.8 % of its 989."""
    findings = explain_utilisation(
        gpu=load_gpu("h100-sxm"), dtype="bf16", achieved_flop_per_s=1.04 * 312e12, peak_used_flop_per_s=312e12
    )
    assert 100 * utilisation(findings) == pytest.approx(32.8, abs=0.2)
    assert "another part" in findings[0].because
    assert "A100" in findings[0].because


def test_s12_21_per_cent_was_divided_by_the_sparsity_figure():
    """NVIDIA/Megatron-LM 1565: 420 TFLOP/s over 1979 on an H200 are 42.5 % of the dense peak."""
    findings = explain_utilisation(
        gpu=load_gpu("h200-sxm"), dtype="bf16", achieved_flop_per_s=420e12, peak_used_flop_per_s=1979e12
    )
    assert 100 * utilisation(findings) == pytest.approx(42.5, abs=0.2)
    assert "sparsity" in findings[0].because
    assert "21.2%" in findings[0].claim


def test_a_right_divisor_is_left_alone_and_an_implausible_rate_is_doubted():
    right = explain_utilisation(
        gpu=load_gpu("h100-sxm"), dtype="bf16", achieved_flop_per_s=400e12, peak_used_flop_per_s=989.5e12
    )
    assert right[0].suggestion == ""
    doubtful = explain_utilisation(gpu=load_gpu("h100-sxm"), dtype="bf16", achieved_flop_per_s=900e12)
    assert "check" in doubtful[0].suggestion


def test_a_divisor_of_another_dtype_or_of_no_part_is_named():
    fp8 = explain_utilisation(
        gpu=load_gpu("h100-sxm"), dtype="bf16", achieved_flop_per_s=400e12, peak_used_flop_per_s=67e12
    )
    assert "fp32 peak" in fp8[0].because
    unknown = explain_utilisation(
        gpu=load_gpu("h100-sxm"), dtype="bf16", achieved_flop_per_s=400e12, peak_used_flop_per_s=123e13
    )
    assert "no" not in unknown[0].suggestion
    assert "not a dense peak" in unknown[0].because


@pytest.mark.parametrize(
    ("shape", "tokens_per_s", "peak_flop_per_s", "published_percent"),
    [
        ((8_030_261_248, 32, 32, 8192), 2904, 312e12, 56.8),
        ((70_553_706_496, 80, 64, 8192), 331, 312e12, 51.7),
        ((13_015_864_320, 40, 40, 4096), 2162, 312e12, 61.1),
        ((405_853_388_800, 126, 128, 8192), 109, 989e12, 29.0),
    ],
)
def test_s15_torchtitan_2024_utilisations_count_embeddings_and_full_attention(
    shape, tokens_per_s, peak_flop_per_s, published_percent
):
    """pytorch/torchtitan docs/performance.md of 2024: 6 N + 12 L h s, heads of 128."""
    num_params, layers, heads, seq_len = shape
    per_token = palm_flop_per_token(
        num_params=num_params, num_hidden_layers=layers, num_attention_heads=heads, head_dim=128, seq_len=seq_len
    )
    assert 100 * per_token * tokens_per_s / peak_flop_per_s == pytest.approx(published_percent, abs=0.2)


@pytest.mark.parametrize(
    ("num_params", "layers", "hidden_size", "tokens_per_s", "published_percent"),
    [(6_658_859_008, 32, 4096, 10643, 46.44), (64_862_437_376, 80, 8192, 1058, 43.34)],
)
def test_s17_the_mpt_table_to_the_second_decimal(num_params, layers, hidden_size, tokens_per_s, published_percent):
    """mosaicml/llm-foundry benchmarking: (6 N + 12 L d s) x tokens/s over 989.5 TFLOP/s."""
    per_token = llm_foundry_flop_per_token(
        num_params=num_params, num_hidden_layers=layers, hidden_size=hidden_size, seq_len=2048
    )
    assert 100 * per_token * tokens_per_s / 989.5e12 == pytest.approx(published_percent, abs=0.05)


def test_s17_full_recomputation_makes_43_per_cent_mfu_58_per_cent_hfu():
    assert 43.34 * recompute_flop_ratio() == pytest.approx(57.8, abs=0.05)


def test_s23_bloom_105_seconds_are_110_model_tflop_per_s():
    """bigscience tr11: 4,194,304 tokens in 105 s on 384 GPUs, 176,247,271,424 parameters, everything recomputed."""
    rate = six_n_flop_per_token(num_params=176_247_271_424) * 4_194_304 / 105 / 384
    assert rate / 1e12 == pytest.approx(110.0, rel=0.005)
    assert rate * recompute_flop_ratio() / 1e12 == pytest.approx(146.7, rel=0.005)


def test_s29_hours_times_price_and_the_utilisation_of_the_whole_run():
    """Llama 3.1 405B: 30.84M hours at $3.50, 15.6T tokens; DeepSeek-V3: 2.788M hours at $2."""
    assert run_usd(gpu_hours=30.84e6, usd_per_gpu_hour=3.5) / 1e6 == pytest.approx(107.9, rel=0.01)
    assert run_usd(gpu_hours=2.788e6, usd_per_gpu_hour=2.0) / 1e6 == pytest.approx(5.58, rel=0.01)
    rate = six_n_flop_per_token(num_params=405_853_388_800) * 15.6e12 / (30.84e6 * 3600)
    assert 100 * rate / 989e12 == pytest.approx(34.6, rel=0.01)


def sharded(model, engine, **layout):
    return Plan(
        model=read_model(model),
        cluster=read_cluster("8xa100-sxm-80"),
        recipe=Recipe(seq_len=1024, global_batch_size=64, recompute="full"),
        layout=Layout(dp_shard=8, **layout),
        engine=engine,
    )


def claims(plan):
    return " ".join(finding.claim for finding in cautions(plan, predict(plan)))


def test_s09_deepspeed_buckets_are_as_large_as_a_small_model():
    """LianjiaTech/BELLE 402: BLOOM-560M is slower and no smaller under ZeRO-3; 5e8 elements are 1 GB in 16 bits."""
    assert "buckets" in claims(sharded("gpt2", "deepspeed", zero_stage=3))
    assert "buckets" not in claims(sharded("llama-2-13b", "deepspeed", zero_stage=3))


def test_s26_fsdp_reduces_in_every_micro_batch_and_what_not_doing_so_would_cost():
    """meta-pytorch/torchtune 1275: an 8B model's whole fp32 gradients are 32.1 GB."""
    plan = sharded("llama-3.1-8b", "native")
    finding = next(item for item in cautions(plan, predict(plan)) if "Gradients are reduced" in item.claim)
    assert finding.numbers[0].value / 1e9 == pytest.approx(4 * 8.030261248)
