"""Where the textbook's figures and an engine's differ for one plan, term by term, with both numbers.

The textbook convention counts 2 + 2 + 8 bytes per parameter, four tensors per layer, and an 80 decimal-gigabyte card
with nothing reserved. Every difference below is the same plan predicted twice.
"""

from dataclasses import replace
from math import ceil

from shardwise.claims import Claim, near
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import engine_states, state_bytes_of, textbook_states
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import MemoryPrediction, StageMemory
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.units import GB, format_count, format_gb, format_gib

__all__ = ["seed_differences"]

SOURCE = "the textbook convention"
TRANSIENTS: tuple[MemoryComponent, ...] = ("gathered_parameters", "communication_buffers", "temporaries")


def seed_differences(plan: Plan) -> tuple[Finding, ...]:
    """One finding per term in which the textbook and the engine disagree, in reading order."""
    seed = predict_memory(replace(plan, recipe=replace(plan.recipe, convention="seed")))
    real = predict_memory(replace(plan, recipe=replace(plan.recipe, convention="engine")))
    pairs = (
        _totals(seed, real),
        _bytes_per_param(plan, seed.worst, real.worst),
        _fewest_gpus(plan, seed, real),
        _capacity(seed, real),
        _activations(plan, seed.worst, real.worst),
    )
    return (*map(_judged, pairs), _left_out(real.worst))


def _judged(finding: Finding) -> Finding:
    """A finding whose first number is the textbook's and whose second is the engine's, with a verdict on the first."""
    textbook, engine = finding.numbers[:2]
    claim = Claim(
        says=f"{textbook.name}: {textbook.text}",
        source=SOURCE,
        said=textbook.text,
        computed=engine.text,
        verdict=near(textbook.value, engine.value),
        note=finding.because,
    )
    return replace(finding, judged=claim)


def _totals(seed: MemoryPrediction, real: MemoryPrediction) -> Finding:
    textbook, engine = seed.worst.device_used_bytes, real.worst.device_used_bytes
    return Finding(
        topic="convention",
        claim=f"The textbook sum is {format_gb(textbook)} per GPU; the engine is predicted to need {format_gb(engine)} "
        f"({format_gib(engine)}).",
        numbers=(
            Quantity(name="textbook", value=textbook, unit="traffic_bytes"),
            Quantity(name="engine", value=engine, unit="traffic_bytes"),
            Quantity(name="ratio", value=engine / max(1, textbook), unit="ratio"),
        ),
        because="the textbook counts 2 + 2 + 8 bytes per parameter and four tensors per layer, and nothing else",
    )


def _bytes_per_param(plan: Plan, seed: StageMemory, real: StageMemory) -> Finding:
    states = StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=plan.layout)[0]).states
    textbook, engine = textbook_states(plan), engine_states(plan)
    master = f" + {states.master_bytes} fp32 master copy" if states.master_bytes else ""
    return Finding(
        topic="convention",
        claim=f"Bytes per parameter: {textbook.bytes_per_param:g} in the textbook, {engine.bytes_per_param:g} in "
        f"{plan.engine} with {plan.recipe.precision} and {plan.recipe.optimizer}; for "
        f"{format_count(engine.num_params)} parameters {format_gb(textbook.total_bytes)} against "
        f"{format_gb(engine.total_bytes)}.",
        numbers=(
            Quantity(name="textbook states per GPU", value=state_bytes_of(seed), unit="traffic_bytes"),
            Quantity(name="engine states per GPU", value=state_bytes_of(real), unit="traffic_bytes"),
        ),
        because=f"{plan.engine} keeps weights {states.weight_bytes} + gradients {states.gradient_bytes}{master} + "
        f"optimizer moments; the textbook leaves the fp32 copy of the weights out",
    )


def _fewest_gpus(plan: Plan, seed: MemoryPrediction, real: MemoryPrediction) -> Finding:
    textbook = ceil(textbook_states(plan).total_bytes / seed.capacity_bytes)
    engine = ceil(engine_states(plan).total_bytes / real.capacity_bytes)
    return Finding(
        topic="convention",
        claim=f"GPUs needed to hold the states at all: {textbook} by the textbook, {engine} in {plan.engine}, before "
        "any activation.",
        numbers=(
            Quantity(name="textbook", value=textbook, unit="count"),
            Quantity(name=plan.engine, value=engine, unit="count"),
        ),
        because="both figures divide states without remainder; activations, logits and buffers come on top",
    )


def _capacity(seed: MemoryPrediction, real: MemoryPrediction) -> Finding:
    framework = real.worst.component_bytes("framework")
    return Finding(
        topic="convention",
        claim=f"Capacity: the textbook uses all of {format_gb(seed.capacity_bytes)}; the framework sees "
        f"{format_gib(real.capacity_bytes)} ({format_gb(real.capacity_bytes)}) and {format_gib(framework)} of it go to "
        "context, communicators and cached blocks.",
        numbers=(
            Quantity(name="textbook", value=seed.capacity_bytes, unit="traffic_bytes"),
            Quantity(name="framework sees", value=real.capacity_bytes, unit="traffic_bytes"),
            Quantity(name="framework keeps", value=framework, unit="bytes"),
        ),
        because="GB is 1e9 bytes and GiB 2**30: 80 GiB are 85.9 GB",
    )


def _activations(plan: Plan, seed: StageMemory, real: StageMemory) -> Finding:
    textbook, engine = seed.component_bytes("activations"), real.component_bytes("activations")
    per_layer = textbook / max(1, plan.model.num_hidden_layers)
    return Finding(
        topic="convention",
        claim=f"Activations: {format_gb(textbook)} in the textbook, {format_gb(engine)} at the engine's peak with "
        f"recompute={plan.recipe.recompute}.",
        numbers=(
            Quantity(name="textbook", value=textbook, unit="traffic_bytes"),
            Quantity(name="engine", value=engine, unit="traffic_bytes"),
            Quantity(name="textbook per layer", value=per_layer, unit="traffic_bytes"),
        ),
        because="a block keeps about 17 tensors of the hidden width for backward, not four, unless it is recomputed; "
        f"{real.in_flight_micro_batches:g} micro-batches are in flight on the fullest stage",
    )


def _left_out(real: StageMemory) -> Finding:
    logits = real.component_bytes("logits")
    transients = {component: real.component_bytes(component) for component in TRANSIENTS}
    total = logits + sum(transients.values())
    loss = next((phase for phase in real.phases if phase.phase == "loss"), None)
    loss_text = f" (the loss phase reaches {loss.allocated_bytes / GB:.1f} GB)" if loss else ""
    return Finding(
        topic="convention",
        claim=f"Not in the textbook at all: logits and loss, gathered weights, communication buffers and workspaces, "
        f"together {format_gb(total)} at the peak{loss_text}.",
        numbers=(
            Quantity(name="logits", value=logits, unit="traffic_bytes"),
            *(Quantity(name=name, value=value, unit="traffic_bytes") for name, value in transients.items()),
        ),
        because="logits are micro_batch_size x seq_len x vocab_size in several copies; FSDP gathers whole units and "
        "keeps gradients waiting for their reduction",
    )
