"""One pipeline stage of a plan, and the facts all of its tensors follow from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from shardwise.columns import Each, either, for_one_plan, negated, of_word, rounded, settled
from shardwise.engines.profile import EngineProfile, StateBytes
from shardwise.engines.table import accumulates_in_fp32, engine_profile, reduces_units, state_bytes
from shardwise.model import LayerSpec, Weight
from shardwise.plan import Plan
from shardwise.recipe import MomentDtype, Recompute, ReduceDtype
from shardwise.step.attention_kernel import writes_scores
from shardwise.step.block_memory import BlockMemory, block_memory
from shardwise.step.held_stage import HeldStage, held_stage, pipeline_of
from shardwise.step.held_weights import EMPTY, Division, HeldWeights, adapter_weights, adapts_feed_forward, hold
from shardwise.step.in_flight import times_made_again
from shardwise.step.layer_placement import Runs, Stage
from shardwise.step.native_engine import (
    compiles_experts,
    exchanges_gradients,
    has_own_decoder,
    is_native_engine,
    is_replicated,
    keeps_halves,
    splits_backward,
    spreads_vocabulary,
    uses_units,
    weighs_expert_inputs,
)
from shardwise.step.recomputed_blocks import HeldRun
from shardwise.step.saved_activations import Adapter, BackwardContext, BlockContext, SelectiveRule, backward_temporaries
from shardwise.step.states import QUANTISED_BYTES
from shardwise.step.timeline import Timeline
from shardwise.units import Bytes

DTYPE_BYTES: dict[ReduceDtype | MomentDtype, int] = {"fp32": 4, "bf16": 2}

NUM_GATED_TENSORS: dict[Recompute, int] = {"none": 4, "selective": 2, "full": 1}
"""Tensors that the backward of a gated activation makes in our trainer's compiled blocks, by recompute mode
(:class:`BackwardContext`), on an H200 with torch 2.11."""
NUM_GATED_TENSORS_ADAPTED = 5
"""The number for products with adapters that are recomputed, in 16 or 4 bits: seven are alive at once, of which two
count as brought back. These are gate and up, what adapters add to each, both sums and the activation (Inductor's code
on an H200)."""
NUM_NORMS_REMADE: dict[Recompute, int] = {"none": 0, "selective": 0, "full": 2}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Equal consecutive pieces that are sharded and gathered one at a time: blocks, or the tables and head."""

    name: str
    count: int
    base: HeldWeights
    adapter: HeldWeights
    is_block: bool
    run: int = -1
    """Index into the runs of blocks that the units were made of; -1 for tables and head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyPlans:
    """Where the numbers of a plan are columns: what all of its stages hold, and how functions of numbers are asked."""

    held: HeldStage
    each: Each


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """One stage of a plan, with everything its tensors follow from.

    What the memory of the stage follows from may also be asked about many plans at once (:mod:`shardwise.columns`),
    whose stages differ in their sizes and not in their moments.
    """

    plan: Plan
    stage: Stage
    many: ManyPlans | None = None

    @cached_property
    def held(self) -> HeldStage:
        """The blocks and ends of the stage, and how many micro-batches wait there."""
        return self.many.held if self.many is not None else held_stage(self.stage, pipeline_of(self.plan))

    @cached_property
    def each(self) -> Each:
        """How functions of plain numbers are asked."""
        return self.many.each if self.many is not None else for_one_plan

    @cached_property
    def profile(self) -> EngineProfile:
        """How the engine implements the step."""
        return engine_profile(self.plan.engine)

    @cached_property
    def states(self) -> StateBytes:
        """Bytes per parameter of each state."""
        states = self.each(
            state_bytes,
            engine=self.plan.engine,
            precision=self.plan.recipe.precision,
            in_fp32=settled(accumulates_in_fp32(self.plan.engine, self.plan.layout)),
            in_units=settled(reduces_units(self.plan.engine, self.plan.layout)),
        )
        if self.adapted_input_bytes == DTYPE_BYTES["fp32"]:
            states = replace(states, weight_bytes=4, gradient_bytes=4, moment_bytes=4, reduce_bytes=4)
        if self.keeps_halves is not False:  # gradients of one micro-batch stay as backward makes them
            is_left = self.keeps_halves & (self.plan.num_microbatches == 1)
            made = either(is_left, states.compute_bytes, states.gradient_bytes)
            states = replace(states, gradient_bytes=made)
        if self.plan.recipe.moment_dtype is not None:
            states = replace(states, moment_bytes=DTYPE_BYTES[self.plan.recipe.moment_dtype])
        asked = self.plan.recipe.reduce_dtype
        if asked is None:
            return states
        reduce_bytes = DTYPE_BYTES[asked]
        # Megatron accumulates in the buffer that it reduces (--grad-reduce-in-bf16).
        own_buffer = self.profile.sharding == "megatron"
        return replace(
            states,
            reduce_bytes=reduce_bytes,
            gradient_bytes=reduce_bytes if own_buffer else states.gradient_bytes,
        )

    @property
    def timeline(self) -> Timeline:
        """The moments of the step."""
        return self.held.timeline

    @property
    def held_runs(self) -> tuple[HeldRun, ...]:
        """Runs of identical blocks, each cut behind the last of its blocks that is recomputed."""
        return self.held.runs

    @cached_property
    def zero_stage(self) -> int:
        """ZeRO stage of what is held from step to step; our own trainer divides all states in every stage above 0."""
        if self.is_native_engine:
            return either(is_replicated(self.plan.layout), 0, 3)
        return self.plan.layout.zero_stage

    @cached_property
    def is_native_engine(self) -> bool:
        """Whether our own trainer runs the plan."""
        return is_native_engine(self.plan)

    @cached_property
    def gathers_parameters(self) -> bool:
        """Whether parameters are gathered unit by unit (FSDP, ZeRO-3; under our trainer also from one rank)."""
        if self.is_native_engine:
            return settled(uses_units(layout=self.plan.layout, recipe=self.plan.recipe))
        return settled(self.zero_stage == 3)

    @cached_property
    def keeps_halves(self) -> bool:
        """Whether our trainer keeps fp32 weights as two halves, one of which it computes with."""
        return self.is_native_engine and settled(keeps_halves(layout=self.plan.layout, recipe=self.plan.recipe))

    @cached_property
    def wraps_ends(self) -> bool:
        """Whether token table and head are FSDP units of their own; one table that is both stays in the root unit."""
        asked = self.plan.recipe.wrap_ends
        wraps = self.profile.wraps_ends if asked is None else asked
        return bool(wraps) and not self.plan.model.tie_word_embeddings

    @cached_property
    def vocabulary_ranks(self) -> int:
        """Data-parallel ranks that divide token table and head by row, whose tokens travel; 1 when each gathers."""
        return either(settled(spreads_vocabulary(self.plan)), self.plan.layout.dp_shard, 1)

    @cached_property
    def exchanges_gradients(self) -> bool:
        """Whether gradients travel as they were made, to be added up in fp32 where they arrive."""
        return settled(exchanges_gradients(self.plan))

    @cached_property
    def has_adapter(self) -> bool:
        """Whether only LoRA matrices are trained."""
        return self.plan.recipe.adapter != "none"

    @cached_property
    def is_distributed_data_parallel(self) -> bool:
        """Replicas whose gradients torch's DDP reduces in flat buckets."""
        torch_engine = self.profile.is_torch
        return settled(torch_engine & negated(self.gathers_parameters) & (self.plan.layout.data_parallel_size > 1))

    @cached_property
    def has_persistent_gradients(self) -> bool:
        """Gradients that are views of buffers allocated once: Megatron, DeepSpeed, DDP with bucket views."""
        views = self.is_distributed_data_parallel & (not self.profile.ddp_copies_gradients)
        return self.profile.has_persistent_gradients | views

    @cached_property
    def is_autocast(self) -> bool:
        """fp32 modules under torch autocast: fp32 residual stream and cached low-precision weight copies."""
        torch_engine = self.profile.is_torch
        mixed = self.states.compute_bytes < self.states.weight_bytes
        return (
            (torch_engine and not self.is_native_engine and not self.has_adapter)
            & mixed
            & negated(self.gathers_parameters)
        )

    @cached_property
    def adapted_input_bytes(self) -> Bytes:
        """Bytes an element of the copy of its input that every adapted matrix keeps; 0 where all readers keep one.

        fp32 adapters cast what they read to fp32, and autocast casts the copy back (peft ``tuners/lora/layer.py``).
        """
        precision = self.plan.recipe.precision
        if not (self.has_adapter and self.profile.has_fp32_adapters) or precision == "fp32":
            return 0
        return 4 if precision == "bf16" else 2

    @cached_property
    def live_block_copies(self) -> int:
        """Blocks' worth of recomputed activations alive at once: 2 for fp32 adapters under FSDP1, else 1.

        FSDP1 runs without autocast, so fp32 adapters widen what a recomputed block holds; measured as a factor of two
        on fms-acceleration's LoRA runs (slope of peak memory over the micro-batch: 1.95 against 0.98 GiB).
        """
        mixed = self.states.compute_bytes < self.states.weight_bytes
        return 2 if self.profile.sharding == "fsdp1" and self.has_adapter and mixed else 1

    def trained(self, unit: Unit) -> HeldWeights:
        """The part of a unit that gets gradients: all of it, or its adapter."""
        return unit.adapter if self.has_adapter else unit.base

    def gathered_bytes(self, unit: Unit) -> Bytes:
        """One unit gathered for computing: low-precision weights, or a 4-bit base in its stored form."""
        adapter = unit.adapter.full * self.states.compute_bytes
        if self.plan.recipe.adapter == "qlora" and unit.is_block:
            return adapter + rounded(unit.base.full * QUANTISED_BYTES)
        return adapter + unit.base.full * self.states.compute_bytes

    @cached_property
    def rounds(self) -> int:
        """Micro-batches that every block of this stage runs in a step: half of all where the model is there twice."""
        return ceil(self.plan.num_microbatches / self.plan.layout.model_copies)

    @cached_property
    def tokens(self) -> int:
        """T: tokens of one micro-batch on one rank."""
        return -(-self.plan.recipe.tokens_per_micro_batch // self.plan.layout.cp)

    @cached_property
    def block_context(self) -> BlockContext:
        """Sizes, degrees and kernels that decide how large the saved tensors of a block are."""
        recipe, layout, model = self.plan.recipe, self.plan.layout, self.plan.model
        element = 4 if recipe.precision == "fp32" else 2
        compiles_whole = compiles_experts(layout=layout, recipe=recipe)
        weighs_inputs = weighs_expert_inputs(layout=layout, recipe=recipe, model=model)
        return BlockContext(
            hidden_size=model.hidden_size,
            tokens=self.tokens,
            seq_len=recipe.seq_len,
            tp=layout.tp,
            expert_tp=layout.expert_tp,
            is_sequence_parallel=layout.sequence_parallel,
            element_bytes=element,
            residual_bytes=either(self.is_autocast, 4, element),
            is_eager_attention=writes_scores(self.plan),
            has_fused_softmax=self.profile.sharding in ("megatron", "deepspeed"),
            has_fused_norm=self.profile.has_fused_norm
            or recipe.compile
            or recipe.liger_kernels
            or (self.is_native_engine and has_own_decoder(model) and not self.plan.cluster.runs_on_cpu),
            has_fused_activation=self.profile.has_fused_activation or recipe.compile or recipe.liger_kernels,
            saves_gathered_input=self.profile.saves_gathered_input & layout.sequence_parallel,
            attention_dropout=model.attention_dropout_fraction > 0,
            hidden_dropout=model.hidden_dropout_fraction > 0,
            saves_attention_input=not self.adapted_input_bytes,
            casts_inputs_separately=self.is_autocast & (not recipe.compile),
            gathered_sequence_ratio=layout.cp if self.is_native_engine else 1,
            copies_exchanged_rows=self.is_native_engine & (layout.ep > 1),
            keeps_exchanged_rows=layout.ep > 1,
            runs_experts_eagerly=self.is_native_engine & negated(compiles_whole),
            remakes_expert_activation=self.is_native_engine & (weighs_inputs | compiles_whole),
            saves_mlp_input=not self.has_adapter or (self._adapts_feed_forward and not self.adapted_input_bytes),
            remakes_elementwise=self._is_own_compiled,
            keeps_packed_products=self.profile.sharding != "megatron",
            spells_out_activations=self.is_native_engine and not (has_own_decoder(model) or recipe.compile),
            fuses_norms=self.profile.has_transformer_engine,
            has_fp8_inputs=self.profile.has_transformer_engine and self._multiplies_in_fp8,
            has_fp8_activation_inputs=self._keeps_activation_inputs_in_8_bits,
            keeps_expert_outputs=self.profile.keeps_expert_outputs
            & (negated(self.is_native_engine & has_own_decoder(model)) | (layout.ep > 1)),
            adapter=self._adapter,
            selective=SelectiveRule(
                policy=self.profile.selective_policy, modules=recipe.recompute_modules, is_compiled=recipe.compile
            ),
        )

    @property
    def _keeps_activation_inputs_in_8_bits(self) -> bool:
        asked = self.plan.recipe.activation_func_fp8_input_store
        if asked is not None:
            return asked
        return self.profile.keeps_activation_inputs_in_8_bits and self._multiplies_in_fp8

    @cached_property
    def backward_context(self) -> BackwardContext:
        """Numbers of tensors that the backward of a block allocates beside those it restores."""
        num_norms = of_word(self.plan.recipe.recompute, NUM_NORMS_REMADE) if self._is_own_compiled else 0
        return BackwardContext(num_gated_tensors=self._num_gated_tensors, num_norms_remade=num_norms)

    @property
    def _is_own_compiled(self) -> bool:
        return self.is_native_engine and self.plan.recipe.compile

    @property
    def _adapter(self) -> Adapter | None:
        if not self.has_adapter:
            return None
        recipe = self.plan.recipe
        return Adapter(
            rank=recipe.lora_rank,
            targets=recipe.lora_targets,
            has_dropout=recipe.lora_dropout_fraction > 0,
            input_bytes=self.adapted_input_bytes,
        )

    @cached_property
    def _adapts_feed_forward(self) -> bool:
        return adapts_feed_forward(self.plan.model.layers, self.plan.recipe.lora_targets)

    @property
    def _num_gated_tensors(self) -> int:
        recipe = self.plan.recipe
        if not self._is_own_compiled:
            return 2
        if self.has_adapter and self._adapts_feed_forward:
            return either(recipe.recompute == "none", NUM_GATED_TENSORS["none"], NUM_GATED_TENSORS_ADAPTED)
        is_plain = recipe.precision != "fp8-mixed"
        return of_word(recipe.recompute if is_plain else "none", NUM_GATED_TENSORS)

    @cached_property
    def _multiplies_in_fp8(self) -> bool:
        return self.plan.recipe.precision == "fp8-mixed" and self.plan.cluster.gpu.peak_flop_per_s("fp8") > 0

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Blocks in runs, then the tables and the head this stage holds."""
        return self._units(self.layer_runs)

    @cached_property
    def held_units(self) -> tuple[Unit, ...]:
        """The units of this stage, with its blocks in the runs that memory tells apart."""
        return self._units(tuple((run.layer, run.count) for run in self.held_runs))

    def _units(self, runs: Runs) -> tuple[Unit, ...]:
        found: list[Unit] = []
        for run, (layer, count) in enumerate(runs):
            base, adapter = self._held_by_block(layer)
            found.append(Unit(name=f"blocks[{run}]", count=count, base=base, adapter=adapter, is_block=True, run=run))
        tables = self._table_weights()
        if tables:
            base = self._hold(tables)
            found.append(Unit(name="embedding and head", count=1, base=base, adapter=EMPTY, is_block=False))
        return tuple(found)

    @cached_property
    def _blocks(self) -> dict[int, tuple[HeldWeights, HeldWeights]]:
        return {}

    def _held_by_block(self, layer: LayerSpec) -> tuple[HeldWeights, HeldWeights]:
        """The weights of a block that a rank holds, and those of its adapter."""
        known = self._blocks
        if id(layer) not in known:
            adapter, added = EMPTY, self._adapter
            if added is not None:
                adapter = self._hold(adapter_weights(layer, rank=added.rank, targets=added.targets))
            known[id(layer)] = (self._hold(layer.weights), adapter)
        return known[id(layer)]

    def _hold(self, weights: tuple[Weight, ...]) -> HeldWeights:
        by_tensor = self.profile.sharding == "fsdp2"
        return self.each(hold, weights, self._division, is_sharded_by_tensor=by_tensor)

    @cached_property
    def _division(self) -> Division:
        return Division.of(self.plan.layout)

    @cached_property
    def layer_runs(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Runs of identical blocks over all chunks, in model order."""
        return self.stage.layer_runs

    def _table_weights(self) -> tuple[Weight, ...]:
        model, held = self.plan.model, self.held
        weights: tuple[Weight, ...] = ()
        if held.has_embedding:
            weights += model.embedding_weights + model.side_weights
        if held.has_head:
            weights += model.final_weights + model.head_weights
            if model.tie_word_embeddings and not held.has_embedding:
                weights += tuple(w for w in model.embedding_weights if w.split == "vocab")
        return weights

    @cached_property
    def head_elements(self) -> int:
        """Elements of the output projection on this rank, tied or not; 0 without."""
        model = self.plan.model
        if not (self.held.has_head and model.has_head):
            return 0
        tied = tuple(w for w in model.embedding_weights if w.split == "vocab") if model.tie_word_embeddings else ()
        return self._hold(model.head_weights + tied).full

    @cached_property
    def embedding_elements(self) -> int:
        """Elements of the token table on this rank; 0 on other stages."""
        if not self.held.has_embedding:
            return 0
        return self._hold(self.plan.model.embedding_weights).full

    @cached_property
    def blocks(self) -> tuple[BlockMemory, ...]:
        """Memory of one block of every held run: kept for backward, restored by recomputation, and temporary."""
        known = {id(run.layer): self.each(block_memory, run.layer, self.block_context) for run in self.held_runs}
        return tuple(known[id(run.layer)] for run in self.held_runs)

    @cached_property
    def temporaries(self) -> tuple[Bytes, ...]:
        """Gradients of activations inside the backward of one block of every held run."""
        known = {
            id(run.layer): backward_temporaries(run.layer, self.block_context, self.backward_context)
            for run in self.held_runs
        }
        return tuple(known[id(run.layer)] for run in self.held_runs)

    def kept_bytes(self, run: int) -> Bytes:
        """Bytes one block of a held run keeps from forward to backward when it is recomputed as the recipe says."""
        block = self.blocks[run]
        kept: dict[Recompute, Bytes] = {"none": block.whole, "selective": block.kept_selectively, "full": block.input}
        return of_word(self.plan.recipe.recompute, kept)

    def revived_bytes(self, run: int) -> Bytes:
        """Bytes that are restored at once when a block of a held run is recomputed."""
        block = self.blocks[run]
        revived: dict[Recompute, Bytes] = {
            "none": 0,
            "selective": block.revived_selectively,
            "full": block.whole - block.input,
        }
        return of_word(self.plan.recipe.recompute, revived)

    @cached_property
    def has_plain_loss(self) -> bool:
        """Whether our trainer computes whole logits: where backward is split, without divided vocabulary."""
        return settled(splits_backward(self.plan.layout) & (self.plan.layout.tp == 1))

    @cached_property
    def times_made_again(self) -> float:
        """How often a recomputed block is recomputed for one micro-batch: our trainer does so in halves of backward."""
        layout = self.plan.layout
        if not self.is_native_engine:
            return 1.0
        return times_made_again(pp=layout.pp, vpp=layout.vpp, schedule=layout.schedule, stage=self.stage.index)

    def num_recomputed(self, layer: LayerSpec) -> int:
        """How many of the stage's blocks that are like this one are recomputed for a micro-batch, each as often."""
        return round(self.times_made_again * sum(run.num_recomputed for run in self._alike(layer)))

    def recomputed_fraction(self, layer: LayerSpec) -> float:
        """How many for every block of the stage that is like it."""
        return self.num_recomputed(layer) / sum(run.count for run in self._alike(layer))

    def _alike(self, layer: LayerSpec) -> Iterator[HeldRun]:
        return (run for run in self.held_runs if run.layer is layer)
