"""Recipes in Python, as newer torchtitan versions have them, are read without being run, and written."""

import pytest

from shardwise.errors import PlanError
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.export import export_plan
from shardwise.exchange.reading import planned_values, read_parsed
from shardwise.plan_file import read_plan

RECIPES = """
from torchtitan.components.lora import LoRAConverter
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

def base() -> Trainer.Config:
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    spec = model_registry("405B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
        compile=compile_config,
    )

def wide() -> Trainer.Config:
    config = base()
    config.parallelism.context_parallel_degree = 4
    config.activation_checkpoint = None
    config.training.some_new_knob = 3
    return config

def adapters() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B", converters=[LoRAConverter.Config(rank=8, target_modules=["wqkv", "wo"])]),
        training=TrainingConfig(max_context_length=4096),
    )
"""


def reading_of(name):
    line = f"torchrun --nnodes 16 --nproc_per_node 8 -m torchtitan.train --module my_recipes --config {name}\n"
    documents = [*parse_documents(RECIPES, name="my_recipes.py"), *parse_documents(line, name="run.sh")]
    return read_parsed(documents)


def test_a_call_of_config_dataclasses_is_read_with_products_and_names_worked_out():
    reading = reading_of("base")
    said = {name: reading.value(name) for name in ("model", "tp", "dp_shard", "micro_batch_size", "seq_len")}
    assert said == {"model": "llama3 405B", "tp": 8, "dp_shard": 16, "micro_batch_size": 2, "seq_len": 8192}
    assert (reading.value("precision"), reading.value("recompute")) == ("fp8-mixed", "full")
    assert (reading.value("compile"), reading.value("async_tensor_parallel")) == (True, True)
    assert reading.claim("recompute").place == "my_recipes.py:base.activation_checkpoint"


def test_a_recipe_that_changes_another_is_the_other_with_the_change():
    reading = reading_of("wide")
    assert (reading.value("cp"), reading.value("tp"), reading.value("dp_shard")) == (4, 8, 4)
    assert reading.value("recompute") == "none"
    assert [(one.place, one.value) for one in reading.not_understood] == [
        ("my_recipes.py:wide.training.some_new_knob", "3")
    ]


def test_adapters_are_a_converter_of_the_model():
    reading = reading_of("adapters")
    names = ("adapter", "lora_rank", "lora_alpha", "lora_targets", "precision")
    assert [reading.value(name) for name in names] == ["lora", 8, 16.0, "attention", "bf16-mixed"]


def test_one_of_several_recipes_has_to_be_named():
    with pytest.raises(PlanError, match="3 recipes stand in the file, among them base, wide, adapters"):
        read_parsed(parse_documents(RECIPES, name="my_recipes.py"))


def test_what_a_line_that_names_a_recipe_leaves_out_is_open():
    line = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b\n"
    reading = read_parsed(parse_documents(line, name="run.sh"))
    assert [one.field for one in reading.questions] == ["micro_batch_size", "seq_len", "precision", "recompute"]


def test_what_is_not_python_is_refused():
    with pytest.raises(PlanError, match="is not Python"):
        parse_documents("def train(:\n", name="recipe.py")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    c = Trainer.Config()\n    c.again = c\n    return c\n", "nested more deeply than any recipe"),
        ("    a = [1]\n" + "    a = [a, a]\n" * 30 + "    return Trainer.Config(a=a)\n", "more than any file"),
    ],
)
def test_recipes_without_end_are_refused(body, words):
    with pytest.raises(PlanError, match=words):
        parse_documents(f"def train():\n{body}", name="recipe.py")


def test_products_of_numbers_that_no_recipe_has_stay_text():
    product = "*".join(["-1000000000000000000", *["1000000000000000000"] * 60])
    (document,) = parse_documents(f"def train():\n    return Trainer.Config(steps={product})\n", name="recipe.py")
    assert str(document.facts[1].value).startswith("-1000000000000000000 * 1000000000000000000 *")


def test_uneven_stages_are_written_module_by_module_and_come_back():
    layout = {"pp": 2, "dp_shard": 4, "stage_layers": [17, 15]}
    plan = read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xh100-sxm",
            "engine": "torchtitan",
            "recipe": {"seq_len": 4096, "global_batch_size": 64},
            "layout": layout,
        }
    )
    for target, head in (("torchtitan", "output"), ("torchtitan-recipe", "lm_head")):
        files = export_plan(plan, to=target)
        assert f"norm', '{head}'" in files[0].text.replace('"', "'")
        reading = read_parsed([one for file in files for one in parse_documents(file.text, name=file.name)])
        assert planned_values(reading)["stage_layers"] == (17, 15)
