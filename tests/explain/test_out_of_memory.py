"""Out-of-memory messages are read for what they say, and matched to the plan that was running."""

from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ShardwiseError
from shardwise.explain.changes import NOTHING_FITS, remedies
from shardwise.explain.out_of_memory import explain_allocation, explain_out_of_memory
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.units import format_gib

FRAGMENTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.28 GiB is free. Including non-PyTorch memory, this process has 77.86 GiB memory in use. Of the "
    "allocated memory 60.00 GiB is allocated by PyTorch, and 15.33 GiB is reserved by PyTorch but unallocated."
)
SHARED = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which 12.00 MiB is "
    "free. Process 77 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has 13.50 GiB memory in "
    "use. Of the allocated memory 12.75 GiB is allocated by PyTorch, and 261.00 MiB is reserved by PyTorch but "
    "unallocated."
)
TOO_LARGE = (
    "CUDA out of memory. Tried to allocate 130.00 GiB. GPU 0 has a total capacity of 23.56 GiB of which 16.57 GiB is "
    "free. Of the allocated memory 5.45 GiB is allocated by PyTorch, and 1.17 GiB is reserved by PyTorch but "
    "unallocated."
)


@pytest.fixture
def plan():
    return Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster("8xh100-sxm"),
        recipe=Recipe(seq_len=4096, micro_batch_size=4, global_batch_size=32),
        layout=Layout(dp_shard=8),
    )


def claims(findings):
    return " ".join(finding.claim for finding in findings)


def suggestions(findings):
    return " ".join(finding.suggestion for finding in findings)


def test_fragmentation_is_named_with_its_setting():
    findings = explain_out_of_memory(FRAGMENTED)
    assert "15.33 GiB are held by the allocator but in no tensor" in claims(findings)
    assert "only not in one piece" in claims(findings)
    assert "expandable_segments:True" in suggestions(findings)


def test_what_is_outside_the_allocator_is_computed():
    assert "2.53 GiB of this process are outside" in claims(explain_out_of_memory(FRAGMENTED))


def test_another_process_on_the_same_gpu_is_named():
    findings = explain_out_of_memory(SHARED)
    assert "1 other process(es) hold 10.00 GiB" in claims(findings)
    assert "nvidia-smi" in suggestions(findings)


def test_a_request_larger_than_the_device_is_a_different_problem():
    assert "freeing memory cannot help" in claims(explain_out_of_memory(TOO_LARGE))


def test_logits_are_found_in_the_plan_that_was_running(plan):
    """4 x 4096 x 128,256 x 4 B are 7.83 GiB of fp32 logits."""
    text = FRAGMENTED.replace("2.00 GiB", "7.83 GiB")
    findings = explain_out_of_memory(text, plan=plan)
    match = next(finding for finding in findings if finding.topic == "allocation")
    assert match.claim.startswith("logits, fp32")
    assert "micro_batch_size 4 x seq_len 4096 x vocab_size 128256 x 4 B" in match.because
    assert "loss_chunks" in match.suggestion


def test_the_failure_is_set_against_the_prediction(plan):
    findings = explain_out_of_memory(FRAGMENTED, plan=plan)
    against, memory = findings[1], predict(plan).memory
    numbers = {number.name: number.value for number in against.numbers}
    assert f"it needs {format_gib(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)} per GPU" in against.claim
    assert numbers["predicted need"] == memory.needed_bytes
    assert numbers["predicted peak in tensors"] == memory.worst.peak_allocated_bytes
    assert numbers["in tensors at the failure"] == pytest.approx(62 * 2**30)


def test_a_plan_that_does_not_fit_is_given_the_first_change_that_does(plan):
    """The log of a plan with four times its micro-batch."""
    too_big = replace(plan, recipe=replace(plan.recipe, micro_batch_size=16, global_batch_size=128))
    against = explain_out_of_memory(FRAGMENTED, plan=too_big)[1]
    change = next(one for one in remedies(too_big, predict(too_big)) if one.fits)
    assert "does not fit by prediction" in against.claim
    assert against.suggestion == f"{change.edit} needs {format_gib(change.needed_bytes)} ({change.fit})"


def test_where_no_change_fits_it_says_how_many_were_tried_together(plan):
    """Up to three edits are added up, and the sentence spoke of one field."""
    too_big = replace(plan, model=read_model("llama-3.1-405b"), cluster=read_cluster("1xrtx-4090"), layout=Layout())
    assert not any(one.fits for one in remedies(too_big, predict(too_big)))
    suggestion = explain_out_of_memory(FRAGMENTED, plan=too_big)[1].suggestion
    assert suggestion == NOTHING_FITS
    assert suggestion.startswith("none of the changes that were tried makes it fit, alone or up to 3 together")


def test_a_message_without_its_own_account_is_answered_by_the_plan_all_the_same(plan):
    """A short message said nothing of the plan."""
    claim = explain_out_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB", plan=plan)[1].claim
    assert "GiB per GPU; the message asks for 2.00 GiB." in claim


def test_a_message_from_another_device_is_noticed(plan):
    assert "comes from a device of 23.69 GiB" in claims(explain_out_of_memory(SHARED, plan=plan))


def test_a_size_alone_is_answered_by_its_shape():
    findings = explain_allocation("32.00 GiB")
    assert any("attention scores" in finding.claim for finding in findings)


def test_a_size_of_nothing_says_so(plan):
    findings = explain_allocation("123457 bytes", plan=plan)
    assert "no tensor of this plan" in findings[0].claim
    assert "micro_batch_size" in findings[0].suggestion


def test_equal_weights_are_shown_as_one_match(plan):
    """q_proj and o_proj are both 4096 x 4096: 32 MiB in bf16."""
    findings = explain_allocation("33554432", plan=plan)
    weights = [finding for finding in findings if "weight" in finding.claim]
    assert len(weights) == 1
    assert "q_proj" in weights[0].claim
    assert "o_proj" in weights[0].claim


@pytest.mark.parametrize("text", ["", "all good", "Tried to allocate nothing"])
def test_a_text_without_a_message_is_refused(text):
    with pytest.raises(ShardwiseError) as refusal:
        explain_out_of_memory(text)
    assert refusal.value.code == "oom-text"


def test_units_of_fsdp_are_cast_and_reduced_on_one_gpu_too():
    """A decoder layer of Llama-3-8B: 218,112,000 parameters x 4 B are 832.03 MiB; the driver is asked for 834."""
    asked = Plan(
        model=read_model("llama-3-8b"),
        cluster=read_cluster("1xh100-sxm"),
        recipe=Recipe(seq_len=8192, precision="fp32"),
        layout=Layout(zero_stage=0),
        engine="fsdp1",
    )
    found = explain_allocation("834.00 MiB", plan=asked)[0]
    assert "one block (32 alike)" in found.claim
    assert "218112000 parameters x 4 B" in found.because
