"""Where nothing fits, the changes that an expert names first: other states, adapters, a base of 4 bits."""

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import SearchBounds, search, what_if


def reliefs(model, cluster, **recipe):
    found = search(
        model=read_model(model),
        cluster=read_cluster(cluster),
        recipe=Recipe(seq_len=4096, global_batch_size=4, **recipe),
    )
    return [relief.change for relief in found.closest.reliefs]


def test_states_in_8_bits_come_with_weights_in_16_where_fp32_weights_alone_are_too_big():
    """32 GB of fp32 weights pass a card of 24 GB and its host whatever their moments are."""
    assert reliefs("llama-3.1-8b", "1xrtx-4090")[:2] == ["optimizer=adamw-8bit precision=bf16", "num_gpus=3"]


def test_a_base_of_4_bits_is_offered_where_one_of_16_is_too_big():
    """20B in 16 bits pass a host of 29 GiB, in 4 bits a card of 16 GB holds them."""
    found = reliefs("gpt-neox-20b", "1xt4", adapter="lora", precision="fp16-mixed")
    assert found[0] == "adapter=qlora"
    assert "adapter=lora" not in found


def test_a_base_of_4_bits_stands_before_one_of_16_that_waits_for_the_host():
    """16 GB of weights cross PCIe in every pass for LoRA on a T4; on the card, 4 bits a weight are a fifth faster."""
    found = reliefs("llama-3.1-8b", "1xt4", precision="fp16-mixed")
    assert found.index("adapter=qlora") + 1 == found.index("adapter=lora")


def test_a_base_of_4_bits_is_offered_where_one_of_16_fits_by_streaming():
    """141 GB of weights cross PCIe in every pass on one H100; 36 GB of 4 bits do not."""
    found = search(
        model=read_model("llama-3.1-70b"),
        cluster=read_cluster("1xh100-sxm"),
        recipe=Recipe(seq_len=4096, global_batch_size=4, adapter="lora"),
    )
    assert found.plans[0].plan.recipe.offload == "parameters"
    offered = {offer.change: offer.step_ratio for offer in what_if(found, limits=SearchBounds()).changes}
    assert offered["adapter=qlora"] < 0.75


def test_what_trains_as_was_asked_stands_before_what_trains_less():
    """QLoRA keeps what LoRA trains; of every weight, more cards do."""
    assert reliefs("gpt-neox-20b", "1xt4", adapter="lora", precision="fp16-mixed")[0] == "adapter=qlora"
    found = reliefs("llama-3.1-8b", "1xt4", precision="fp16-mixed")
    assert found.index("num_gpus=6") < found.index("adapter=qlora")


def test_more_servers_stand_before_a_step_that_takes_ten_times_as_long():
    """Eight-bit moments on eight GPUs wait for the host: four minutes a step where twice as many take 24 s."""
    found = reliefs("mixtral-8x22b", "8xh100-sxm")
    assert found.index("num_nodes=2") < found.index("optimizer=adamw-8bit")


def test_engines_without_a_base_of_4_bits_are_not_offered_one():
    found = search(
        model=read_model("llama-3.1-70b"),
        cluster=read_cluster("1xh100-sxm"),
        recipe=Recipe(seq_len=4096, global_batch_size=4, adapter="lora"),
        engine="megatron",
    )
    assert all(not relief.change.startswith("adapter") for relief in found.closest.reliefs)
