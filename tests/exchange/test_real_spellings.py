"""Files as their tools and users write them, with what each of them means; re-typed, with the parts that matter."""

import pytest

from shardwise.exchange.documents import parse_documents
from shardwise.exchange.reading import read_parsed


def reading_of(text, name):
    return read_parsed(parse_documents(text, name=name))


def test_arguments_that_the_trainer_wrote_are_its_own_and_idle_sections_ask_for_nothing():
    dumped = """{"output_dir": "out", "per_device_train_batch_size": 4, "optim": "adamw_torch_fused", "bf16": true,
    "fsdp": [], "fsdp_config": {"min_num_params": 0, "xla": false}, "deepspeed": null, "local_rank": 0,
    "disable_tqdm": false, "ddp_bucket_cap_mb": null, "torch_compile": false}"""
    reading = reading_of(dumped, "training_args.json")
    assert reading.read_as[0].tool == "TrainingArguments"
    assert (reading.value("engine"), reading.value("zero_stage")) == (None, None)
    assert (reading.value("micro_batch_size"), reading.not_understood) == (4, ())


def test_adapters_are_read_with_scale_dropout_and_matrices():
    text = """{"peft_type": "LORA", "r": 64, "lora_alpha": 16, "use_rslora": true, "lora_dropout": 0.1,
    "target_modules": ["q_proj", "k_proj", "gate_proj"], "rank_pattern": {"q_proj": 32}, "alpha_pattern": {}}"""
    reading = reading_of(text, "adapter_config.json")
    names = ("adapter", "lora_rank", "lora_alpha", "use_rslora", "lora_dropout_fraction", "lora_targets")
    assert [reading.value(name) for name in names] == ["lora", 64, 16, True, 0.1, "q_proj,k_proj,gate_proj"]
    assert [one.place for one in reading.not_understood] == ["adapter_config.json:rank_pattern.q_proj"]


def test_a_regular_expression_of_matrices_is_not_understood_rather_than_dropped():
    text = '{"peft_type": "LORA", "r": 8, "target_modules": ".*\\\\.(q|k)_proj$"}'
    reading = reading_of(text, "adapter_config.json")
    assert reading.value("lora_targets") is None
    assert [one.place for one in reading.not_understood] == ["adapter_config.json:target_modules"]


def test_clipping_is_off_where_its_norm_is_zero():
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": %s, "zero_optimization": {"stage": 2}}'
    assert [reading_of(text % norm, "ds.json").value("clip_gradients") for norm in ("0.0", "1.0", '"auto"')] == [
        False,
        True,
        None,
    ]


def test_two_uneven_stages_need_both_of_megatrons_ends():
    line = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --pipeline-model-parallel-size 2 "
        "--decoder-first-pipeline-num-layers 17 --decoder-last-pipeline-num-layers 15\n"
    )
    assert reading_of(line, "run.sh").value("stage_layers") == (17, 15)


@pytest.mark.parametrize(
    ("layout", "pp", "stages", "vpp"),
    [
        ("Et*3|(tt|)*29m|L", 16, (5, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2, 2), 2),
        ("Et*7|t*7|t*8|t*8L", 4, (7, 7, 8, 8), 1),
    ],
)
def test_a_written_layout_says_the_layers_of_every_stage(layout, pp, stages, vpp):
    """The first is Megatron Core's own for DeepSeek-V3; chunks with the loss or the last prediction have no layer."""
    line = (
        f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {sum(stages)} --pipeline-model-parallel-size {pp} "
        f"--pipeline-model-parallel-layout '{layout}'\n"
    )
    reading = reading_of(line, "run.sh")
    assert (reading.value("stage_layers"), reading.value("vpp")) == (stages, vpp)


@pytest.mark.parametrize("layout", ["Et*9999999|L", "(((t*999)*999)*999)*999L", "Ex|L", "L|E"])
def test_a_layout_that_cannot_be_read_is_no_claim(layout):
    line = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --pipeline-model-parallel-size 2 "
        f"--pipeline-model-parallel-layout '{layout}'\n"
    )
    assert reading_of(line, "run.sh").value("stage_layers") is None


@pytest.mark.parametrize(
    ("flags", "fused", "kernel"),
    [
        ("", False, None),
        ("--cross-entropy-loss-fusion", True, "native"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", True, "te"),
    ],
)
def test_megatron_fuses_its_loss_when_told_and_by_its_own_kernel_unless_told(flags, fused, kernel):
    reading = reading_of(f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 {flags}\n", "run.sh")
    assert (reading.value("fused_loss"), reading.value("fused_loss_kernel")) == (fused, kernel)


def test_a_recipe_of_nemo_leaves_its_degrees_open():
    reading = reading_of("srun -N 2 --ntasks-per-node=8 nemo llm pretrain --factory llama3_70b\n", "run.sh")
    assert (reading.value("engine"), reading.value("world_size")) == ("megatron", 16)
    assert {"tp", "pp", "cp"} <= {one.field for one in reading.questions}
