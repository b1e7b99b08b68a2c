"""Files as their tools and users write them, with what each of them means; re-typed, with the parts that matter."""

import pytest

from shardwise.ask.foreign_plan import read_foreign
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.mistakes import find_mistakes
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


def said(text, name, *fields):
    reading = reading_of(text, name)
    return tuple(reading.value(field) for field in fields)


@pytest.mark.parametrize(("size", "tp", "is_understood"), [(0, 1, True), (6, 6, True), (-2, None, False)])
def test_a_tensor_parallel_size_of_0_is_off(size, tp, is_understood):
    """DeepSpeed's default, which its TPTrainingConfig calls disabled."""
    reading = reading_of(f'{{"train_batch_size": 12, "tensor_parallel": {{"autotp_size": {size}}}}}', "ds.json")
    assert (reading.value("tp"), reading.not_understood == ()) == (tp, is_understood)


def test_a_value_that_nobody_can_read_leaves_its_field_open_instead_of_at_a_default():
    line = "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --tensor-model-parallel-size $TP --micro-batch-size 1\n"
    reading = reading_of(line, "run.sh")
    assert (reading.value("tp"), reading.value("dp_replicate")) == (None, None)
    assert "tp" in {one.field for one in reading.questions}
    assert [one.place for one in reading.not_understood] == ["run.sh:--tensor-model-parallel-size"]
    stage = reading_of(line.replace("--tensor-model-parallel-size $TP", "--zero-stage $ZERO"), "run.sh")
    assert stage.value("zero_stage") is None
    assert [one.place for one in stage.not_understood] == ["run.sh:--zero-stage"]


def test_megatron_without_a_global_batch_has_one_micro_batch_a_step():
    line = "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --micro-batch-size 2 --num-layers 24 --seq-length 2048\n"
    assert said(line, "run.sh", "num_microbatches", "global_batch_size") == (1, 16)
    assert said(line.replace("--bf16", "--global-batch-size 64"), "run.sh", "num_microbatches") == (4,)


def test_older_flags_of_megatron_recompute_every_layer():
    line = "python pretrain_bert.py --num-layers 24 --activations-checkpoint-method uniform --seq-length 512\n"
    assert said(line, "run.sh", "recompute") == ("full",)


def test_a_script_that_sbatch_reads_from_a_here_document_is_read():
    text = """ARGS="--num-layers 24 --seq-length 512 --bf16"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
srun python -X faulthandler pretrain_gpt.py ${ARGS}
EOF
"""
    assert said(text, "submit.sh", "world_size", "seq_len") == (16, 512)


@pytest.mark.parametrize(
    ("option", "world"),
    [("--include localhost:0,1,2,3", 4), ("-i a:0,1@b:0,1", 4), ("--include a", None), ("--include a:$GPUS", None)],
)
def test_deepspeed_starts_a_process_on_every_card_that_is_named(option, world):
    assert said(f"deepspeed {option} train.py --bf16 --max_steps 3\n", "run.sh", "world_size") == (world,)


def test_a_config_that_a_script_writes_is_read_with_the_script():
    """Scripts of Megatron-DeepSpeed write the JSON that they hand to DeepSpeed."""
    text = """MICRO=2
cat <<EOT > ds.json
{"train_batch_size": $GLOBAL, "train_micro_batch_size_per_gpu": $MICRO, "zero_optimization": {"stage": 1}}
EOT
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 24 --seq-length 512 --bf16 --deepspeed_config ds.json
"""
    reading = reading_of(text, "run.sh")
    assert [reading.value(name) for name in ("zero_stage", "micro_batch_size", "world_size")] == [1, 2, 8]
    assert (reading.named_files, [one.place for one in reading.not_understood]) == ((), ["ds.json:train_batch_size"])


def test_variables_of_a_config_stay_where_its_end_is_quoted():
    text = "MICRO=2\ncat <<'EOT' > ds.json\n{\"train_micro_batch_size_per_gpu\": $MICRO}\nEOT\n"
    assert said(text, "run.sh", "micro_batch_size") == (None,)
    assert said(text.replace("'", ""), "run.sh", "micro_batch_size") == (2,)


def test_a_config_that_a_script_writes_and_nobody_can_read_is_not_dropped():
    text = "cat > ds.json <<EOF\n{$MORE}\nEOF\ntorchrun --nproc_per_node 8 t.py --bf16 --deepspeed ds.json\n"
    assert "run.sh:ds.json" in [one.place for one in reading_of(text, "run.sh").not_understood]


@pytest.mark.parametrize("switch", ["use_galore", "use_apollo", "use_badam", "use_adam_mini"])
def test_a_switch_for_an_optimizer_that_a_plan_cannot_say_leaves_it_open(switch):
    text = "stage: sft\nfinetuning_type: full\ncutoff_len: 512\nper_device_train_batch_size: 1\n"
    assert said(f"{text}{switch}: false\n", "args.yaml", "optimizer") == ("adamw",)
    reading = reading_of(f"{text}{switch}: true\n", "args.yaml")
    assert reading.value("optimizer") is None
    assert f"args.yaml:{switch}" in [one.place for one in reading.not_understood]


@pytest.mark.parametrize(("multiple", "is_blamed"), [("", True), ('"mlp_multiple_of": 14336,', False)])
def test_a_gated_width_that_is_rounded_up_to_what_is_meant_is_right(multiple, is_blamed):
    """GPT-NeoX ea7aefd8 megatron/model/transformer.py rounds a third of the width up to that multiple."""
    text = (
        f'{{"pipe_parallel_size": 1, "model_parallel_size": 2, "hidden_size": 4096, {multiple} "activation": "swiglu", '
        '"intermediate_size": 14336}'
    )
    found = [one.code for one in find_mistakes(reading_of(text, "neox.yml"), cluster=None)]
    assert ("field-meaning" in found) is is_blamed


@pytest.mark.parametrize(("layers", "fix"), [(60, "-num-layers 4"), (12, "divides 12, such as 4")])
def test_layers_that_stages_do_not_divide_are_told_with_what_can_be_built(layers, fix):
    """Six stages divide 12 layers too, but not the 8 GPUs."""
    line = f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} --pipeline-model-parallel-size 8\n"
    found = find_mistakes(reading_of(line, "run.sh"), cluster=None)
    assert [one.fix for one in found if one.code == "layers-by-stages" and fix in one.fix]


def test_the_branches_of_a_case_are_no_programs():
    text = 'case "$1" in\n  -h|--help)\n    exit 0 ;;\n  --tp) TP=2 ;;\nesac\ntorchrun train.py --num-layers 24\n'
    assert all(")" not in one.place for one in reading_of(text, "run.sh").not_understood)


def test_a_program_of_nobody_is_not_read_as_a_tool_for_one_option_they_share():
    line = "srun -n 2 python bench.py --world-size 16 --nvlink 8 --hidden 7168 --max-num-tokens 128 --dp 4\n"
    reading = reading_of(line, "bench.sbatch")
    assert [one.tool for one in reading.read_as] == ["launch line"]
    assert reading.contradictions == ()
    assert "bench.sbatch:--world-size" in {one.place for one in reading.not_understood}


def test_yaml_is_read_as_the_tools_read_it():
    text = "base_model: m\nsequence_len: 500_000\nmicro_batch_size: 2\nlora_r: 8\nmicro_batch_size: 4\nlayers: {0: 1}\n"
    reading = reading_of(text, "axolotl.yaml")
    assert (reading.value("seq_len"), reading.value("micro_batch_size")) == (500_000, 4)
    assert [one.place for one in reading.not_understood] == [
        "axolotl.yaml:micro_batch_size (given again on line 5)",
        "axolotl.yaml:layers.0",
    ]


def test_weights_in_8_bits_under_adapters_are_not_taken_for_16_bits_in_silence():
    axolotl = "base_model: m\nadapter: lora\nload_in_8bit: true\nsequence_len: 512\nlora_r: 8\n"
    assert [one.place for one in reading_of(axolotl, "a.yaml").not_understood] == ["a.yaml:load_in_8bit"]
    factory = "model_name_or_path: m\nfinetuning_type: lora\nquantization_bit: 8\ncutoff_len: 512\n"
    assert [one.place for one in reading_of(factory, "l.yaml").not_understood] == ["l.yaml:quantization_bit"]
    assert reading_of(factory.replace("8", "4"), "l.yaml").not_understood == ()
    peft = '{"peft_type": "LORA", "r": 8, "use_dora": true, "modules_to_save": ["lm_head"], "layers_pattern": null}'
    assert len(reading_of(peft, "adapter_config.json").not_understood) == 2


def test_adapters_of_a_megatron_run_are_read_and_all_linear_layers_win_over_a_list():
    factory = "model_name_or_path: m\nfinetuning_type: lora\ntensor_model_parallel_size: 2\ncutoff_len: 512\n"
    assert said(factory, "l.yaml", "engine", "adapter") == ("megatron", "lora")
    axolotl = "base_model: m\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_target_modules: [q_proj]\n"
    reading = reading_of(axolotl, "a.yaml")
    assert (reading.value("lora_targets"), reading.contradictions) == ("all-linear", ())


def test_one_process_is_started_where_accelerate_is_told_that_nothing_is_distributed():
    reading = reading_of("distributed_type: 'NO'\nnum_machines: 1\nnum_processes: 8\n", "accelerate.yaml")
    assert [(one.first.value, one.second.value) for one in reading.contradictions] == [(8, 1)]
    assert [one.code for one in find_mistakes(reading, cluster=None)] == ["gpus-by-processes"]


def test_a_prompt_and_its_completion_are_one_sequence():
    text = "num_generations: 8\nmax_prompt_length: 512\nmax_completion_length: 2048\nper_device_train_batch_size: 1\n"
    assert said(text, "grpo.yaml", "seq_len") == (2560,)


def test_fsdp_of_nemo_and_mics_of_deepspeed_divide_states():
    nemo = "trainer: {num_nodes: 2, devices: 8}\nmodel: {micro_batch_size: 1, fsdp: true, optim: {name: fused_adam}}\n"
    assert said(nemo, "nemo.yaml", "zero_stage", "dp_shard") == (3, 16)
    mics = '{"zero_optimization": {"stage": 3, "mics_shard_size": 8}, "train_micro_batch_size_per_gpu": 1}'
    assert said(mics, "ds.json", "zero_stage", "dp_shard") == (3, 8)


def test_the_kernel_of_attention_is_read_in_each_tools_words():
    kernels = ("attention", "attention_kernel")
    trl = "max_length: 512\nper_device_train_batch_size: 1\nattn_implementation: {}\n"
    assert said(trl.format("flash_attention_2"), "a.yaml", *kernels) == ("flash", "fa2")
    assert said(trl.format("kernels-community/vllm-flash-attn3"), "a.yaml", *kernels) == ("flash", "fa3")
    assert said(trl.format("sdpa"), "a.yaml", *kernels) == ("flash", None)
    assert said(trl.format("eager"), "a.yaml", *kernels) == ("eager", None)
    line = "python pretrain_gpt.py --num-layers 24 --bf16 --attention-backend {}\n"
    assert said(line.format("fused"), "run.sh", *kernels) == ("flash", "cudnn")
    assert said(line.format("unfused"), "run.sh", *kernels) == ("eager", None)
    toml = '[model]\nname = "llama3"\nflavor = "8B_varlen"\n[training]\nlocal_batch_size = 1\n'
    assert said(toml, "t.toml", "attention_kernel") == ("fa2",)


def test_every_second_block_is_what_torchtitan_recomputes_where_it_is_not_told_op(tmp_path):
    text = """[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 4096
[parallelism]\n{pp}\n[activation_checkpoint]\nmode = "selective"\n{option}\n[compile]\nenable = true
components = ["loss"]\n"""
    path = tmp_path / "train.toml"
    for option, pp, recompute in (
        ("", "", ("full", 16)),
        ("selective_ac_option = '3'", "", ("full", 10)),
        ("", "pipeline_parallel_degree = 2", ("full", 8)),
        ("selective_ac_option = 'op'", "", ("selective", None)),
    ):
        path.write_text(text.format(option=option, pp=pp), encoding="utf-8")
        plan = read_foreign([path], model=None, cluster="8xh100-sxm", settings={"global_batch_size": 64}).plan()
        assert (plan.recipe.recompute, plan.recipe.recompute_layers) == recompute
        assert not plan.recipe.compile


def test_the_log_of_megatron_says_choices_with_their_class_and_every_switch_that_is_off():
    lines = {
        **{"attention_backend": "AttnBackend.fused", "bf16": "True", "seq_length": "4096", "micro_batch_size": "1"},
        **{"some_new_switch": "False", "some_new_size": "3", "some_new_name": "None"},
    }
    reading = reading_of("".join(f"  {key} ........ {value}\n" for key, value in lines.items()), "megatron.log")
    assert reading.value("attention_kernel") == "cudnn"
    assert [one.place for one in reading.not_understood] == ["megatron.log:some_new_size"]


def test_hybridep_is_told_like_deepep():
    line = "pretrain_gpt.py --num-experts 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep\n"
    reading = reading_of(line, "run.sh")
    assert (reading.value("expert_exchange"), reading.not_understood) == ("deepep", ())
