"""A plan whose hosts or drives are what it lacks: said where it matters, with changes that help the host."""

from shardwise.catalog import read_cluster
from shardwise.explain.explanation import explain
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.units import GIB

SMALL_HOST = {"node": "dgx-h100", "num_nodes": 1, "host_memory_gib": 64}


def test_a_plan_that_only_the_host_is_too_small_for_does_not_fit_anywhere_in_its_explanation():
    """8 ranks x 20.57 GiB of parameters, gradients, master copy and moments in 64 GiB."""
    asked = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster(SMALL_HOST),
        recipe=Recipe(seq_len=8192, recompute="full", offload="parameters"),
        layout=Layout(dp_shard=8),
        engine="deepspeed",
    )
    explanation = explain(asked)
    assert explanation.prediction.memory.fits_device
    headroom = next(finding for finding in explanation.findings if finding.topic == "headroom")
    assert "host memory are missing on each node" in headroom.claim
    assert "It fits" not in "".join(finding.claim for finding in explanation.findings)
    assert "host memory are missing" in explanation.findings[0].claim
    numbers = {quantity.name: quantity.value for quantity in headroom.numbers}
    assert numbers["missing on the host"] == numbers["host per node"] - 64 * GIB > 90 * GIB
    fitting = {change.edit for change in explanation.changes if change.fits}
    assert {"offload=none", "offload=nvme", "host_memory_gib=192"} <= fitting
    for change in explanation.changes:
        assert predict(change.plan).fits == change.fits


def test_host_and_gpu_that_both_lack_memory_are_both_named():
    asked = Plan(
        model=read_model("llama-3.1-70b"),
        cluster=read_cluster({**SMALL_HOST, "host_memory_gib": 256}),
        recipe=Recipe(seq_len=8192, offload="optimizer"),
        layout=Layout(dp_shard=8),
    )
    explanation = explain(asked)
    headroom = next(finding for finding in explanation.findings if finding.topic == "headroom")
    assert "host memory are missing on each node" in headroom.claim
    assert "the fullest GPU lacks" in headroom.claim
    assert all(change.fits for change in explanation.changes if change.effort == 3)


def test_drives_that_are_too_small_are_named_as_drives():
    asked = Plan(
        model=read_model("llama-3.1-70b"),
        cluster=read_cluster({"node": "dgx-h100", "num_nodes": 1, "nvme_tb": 0.1}),
        recipe=Recipe(seq_len=8192, recompute="full", offload="nvme"),
        layout=Layout(dp_shard=8),
        engine="deepspeed",
    )
    headroom = next(finding for finding in explain(asked).findings if finding.topic == "headroom")
    assert "are missing on the drives of each node" in headroom.claim
