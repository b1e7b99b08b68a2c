"""What is said about memory carries the numbers of the prediction it was made from."""

from shardwise.catalog import read_cluster
from shardwise.explain.memory_findings import memory_findings
from shardwise.explain.state_counts import state_bytes_of
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.recipe import Recipe
from shardwise.units import format_gib


def found(layout=None, cluster="8xh100-sxm", **recipe):
    plan = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster(cluster),
        recipe=Recipe(**({"seq_len": 8192, "global_batch_size": 64} | recipe)),
        layout=layout or Layout(dp_shard=8),
    )
    memory = predict_memory(plan)
    return memory, memory_findings(plan, memory)


def number(finding, name):
    return next(quantity.value for quantity in finding.numbers if quantity.name == name)


def test_headroom_comes_first_with_what_is_spare():
    memory, findings = found(recompute="full")
    assert findings[0].topic == "headroom"
    assert number(findings[0], "spare") == memory.spare_bytes > 0
    assert format_gib(memory.spare_bytes) in findings[0].claim


def test_what_is_missing_is_said_when_it_does_not_fit():
    memory, findings = found(micro_batch_size=4)
    assert "does not fit" in findings[0].claim
    assert format_gib(memory.missing_bytes) in findings[0].claim
    assert findings[0].suggestion


def test_a_device_inside_the_band_is_at_the_edge():
    """MPT-like edge: one longer and longer sequence without recomputation on 80 GB cards."""
    sizes = [{"seq_len": length, "micro_batch_size": 1, "recompute": "none"} for length in range(8192, 24576, 256)]
    borderline = [(memory, findings) for memory, findings in (found(**size) for size in sizes) if memory.is_borderline]
    assert borderline
    memory, findings = borderline[0]
    assert findings[0].claim.startswith("It is at the edge")
    assert number(findings[0], "low") <= memory.capacity_bytes < number(findings[0], "high")


def test_blocks_that_the_allocator_gives_back_are_not_what_dominates():
    """14.12 GiB of framework were called the largest, of which 12.56 are cached; logits are 13.92 of 30.29 GiB."""
    asked = Plan(
        model=read_model("qwen2.5-7b"),
        cluster=read_cluster("8xa100-sxm-80"),
        recipe=Recipe(seq_len=4096, global_batch_size=16, micro_batch_size=2, recompute="full"),
        layout=Layout(dp_shard=8),
        engine="accelerate",
    )
    claims = [finding.claim for finding in memory_findings(asked, predict_memory(asked))]
    (dominant,) = [claim for claim in claims if claim.startswith("Largest component")]
    assert dominant.startswith("Largest component: logits")
    assert "13.92 GiB or 46.0% of what the fullest GPU needs" in dominant


def test_the_dominant_component_is_the_largest_and_says_what_it_grows_with():
    memory, findings = found(micro_batch_size=2)
    top = max(memory.worst.components, key=lambda entry: entry.num_bytes)
    dominant = findings[1]
    assert top.component == "activations"
    assert dominant.claim.startswith("Largest component: activations")
    assert "micro_batch_size x seq_len" in dominant.because
    assert format_gib(state_bytes_of(memory.worst)) in dominant.claim


def test_the_largest_named_tensor_is_shown():
    memory, findings = found(micro_batch_size=2)
    name, num_bytes = memory.worst.largest_tensors[0]
    assert any(name in finding.claim and format_gib(num_bytes) in finding.claim for finding in findings)


def test_uneven_stages_are_pointed_out_with_every_stage():
    layout = Layout(pp=4, dp_shard=2, zero_stage=1)
    memory, findings = found(layout, global_batch_size=32)
    uneven = next(finding for finding in findings if finding.claim.startswith("Stage "))
    assert [quantity.value for quantity in uneven.numbers] == [stage.needed_bytes for stage in memory.stages]


def test_cached_blocks_are_no_need_of_a_stage():
    """A stage was said to need more by what the allocator keeps and gives back."""
    memory, findings = found(Layout(pp=4, dp_shard=2, zero_stage=1), global_batch_size=32)
    least = min(stage.needed_bytes for stage in memory.stages)
    uneven = next(finding for finding in findings if finding.claim.startswith("Stage "))
    assert f"needs {format_gib(memory.needed_bytes - least)} more than" in uneven.claim


def test_a_host_that_is_too_small_is_found_even_when_the_gpu_is_not():
    memory, findings = found(
        Layout(dp_shard=1, zero_stage=3), cluster="1xrtx-4090", offload="parameters", recompute="full"
    )
    host = next(finding for finding in findings if "host memory" in finding.claim)
    assert number(host, "host per node") == memory.host_bytes_per_node > 100e9
