"""Part recomputation and offload: the least that makes a row fit, and a whole small space tried one by one."""

from dataclasses import replace
from itertools import product

import numpy as np

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.predict import predict
from shardwise.predict.memory import predict_memory
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.candidates import modules_of
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.pool import fewest_modules, fewest_recomputed, least_offloaded
from shardwise.search.probes import Probes
from shardwise.search.space import Space

ONE = IntRange(low=1, high=1)


def test_one_block_fewer_would_not_fit(make_question, decorated):
    question = make_question(model="qwen2-7b", cluster="8xa100-sxm-40")
    space = Space(question=question, bounds=SearchBounds())
    plain = decorated(question, recompute=("none",), offload=("none",), activation_offload=False)
    memory = MemoryEstimate(probes=Probes(question=question))
    capacity = question.cluster.gpu.memory_bytes
    found = fewest_recomputed(plain, space, memory=memory, capacity_bytes=capacity)
    assert len(found) > 20
    for row in range(0, len(found), len(found) // 20):
        plan = found.rows.plan(row, question=question)
        assert predict_memory(plan).needed_bytes <= capacity * 1.005
        layers = plan.recipe.recompute_layers
        fewer = replace(
            plan.recipe, recompute_layers=layers - 1, recompute=plan.recipe.recompute if layers > 1 else "none"
        )
        if layers == 1:
            fewer = replace(fewer, recompute_layers=None)
        assert predict_memory(replace(plan, recipe=fewer)).needed_bytes > capacity * 0.995


def test_one_set_of_modules_before_would_not_fit(make_question, decorated):
    question = make_question(model="deepseek-v2", cluster="8xdgx-h100", engine="megatron", global_batch_size=512)
    space = Space(question=question, bounds=SearchBounds())
    plain = decorated(question, recompute=("none",), offload=("none",), activation_offload=False)
    memory, capacity = MemoryEstimate(probes=Probes(question=question)), question.cluster.gpu.memory_bytes
    big = plain.take(plain.needed_bytes > capacity)
    found = fewest_modules(big, space, memory=memory, capacity_bytes=capacity)
    sets = [modules_of(bits) for bits in space.module_sets]
    assert len(set(found.rows.recompute_modules.tolist())) > 1
    for row in range(0, len(found), len(found) // 20):
        plan = found.rows.plan(row, question=question)
        assert predict_memory(plan).needed_bytes <= capacity
        place = sets.index(plan.recipe.recompute_modules)
        before = replace(plan.recipe, recompute_modules=sets[place - 1])
        if not place:
            before = replace(plan.recipe, recompute="none", recompute_modules=None)
        assert predict_memory(replace(plan, recipe=before)).needed_bytes > capacity


def test_what_moves_to_the_host_is_the_least_that_fits(make_question, decorated):
    question = make_question(model="llama-3.1-70b", cluster="8xh100-sxm", global_batch_size=16)
    space = Space(question=question, bounds=SearchBounds())
    kept = decorated(question, recompute=("full",))
    memory = MemoryEstimate(probes=Probes(question=question))
    capacity = question.cluster.gpu.memory_bytes
    found = least_offloaded(kept, space, memory=memory, capacity_bytes=capacity)
    assert len(found) > 0
    assert (found.needed_bytes <= capacity).all()
    less = replace(found.rows, offload=found.rows.offload - 1)
    more_bytes = memory.device_bytes(less)
    offered = (found.rows.offload > 0) & ((found.rows.offload_choices & (1 << np.maximum(0, less.offload))) > 0)
    assert (more_bytes[offered] > capacity).all()


def test_the_fastest_found_is_the_fastest_of_a_small_space_predicted_one_by_one():
    """GPT-2 XL on two 24 GB cards: every recomputation of 1 to 48 blocks and every way to offload, some 700 plans."""
    bounds = SearchBounds(
        tp=ONE,
        cp=ONE,
        pp=ONE,
        dp_replicate=ONE,
        zero_stage=(3,),
        reshard_after_forward=True,
        recompute=("none", "full"),
        offload=("none", "optimizer"),
        micro_batch_size=IntRange(low=2, high=8),
    )
    asked = {"model": read_model("gpt2-xl"), "cluster": read_cluster("2xrtx-4090")}
    recipe = Recipe(seq_len=1024, global_batch_size=64)
    result = search(**asked, recipe=recipe, bounds=bounds)
    fastest = min(ranked.prediction.time.step_s for ranked in result.pareto)
    best = None
    choices = [("none", None), *(("full", layers) for layers in range(1, 49))]
    for (mode, layers), size, offload, moves in product(choices, (2, 4, 8), ("none", "optimizer"), (False, True)):
        chosen = replace(
            recipe,
            micro_batch_size=size,
            recompute=mode,
            recompute_layers=layers,
            offload=offload,
            activation_offload=moves,
        )
        plan = replace(result.plans[0].plan, recipe=chosen)
        memory = predict_memory(plan)
        if memory.fits_device and memory.fits_host and not find_errors(plan):
            step_s = predict(plan).time.step_s
            best = step_s if best is None else min(best, step_s)
    assert best is not None
    assert fastest <= best * 1.005
