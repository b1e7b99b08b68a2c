"""One pipeline stage of a plan, and the facts all of its tensors follow from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from shardwise.engines.profile import EngineProfile, StateBytes
from shardwise.engines.table import engine_profile, state_bytes
from shardwise.model import LayerSpec, Weight
from shardwise.plan import Plan
from shardwise.recipe import MomentDtype, Recompute, ReduceDtype
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.step.activations import BlockContext, SavedTensor, saved_tensors
from shardwise.step.held_weights import EMPTY, HeldWeights, adapter_weights, hold
from shardwise.step.in_flight import in_flight_micro_batches, times_made_again
from shardwise.step.own_runtime import (
    exchanges_gradients,
    is_own_runtime,
    is_replicated,
    spreads_vocabulary,
    uses_ddp,
)
from shardwise.step.placement import Runs, Stage
from shardwise.step.recomputed_blocks import HeldRun, held_runs, recomputed_positions
from shardwise.step.states import QUANTISED_BYTES
from shardwise.step.timeline import Timeline, stage_timeline
from shardwise.units import Bytes

DTYPE_BYTES: dict[ReduceDtype | MomentDtype, int] = {"fp32": 4, "bf16": 2}

NUM_GATED_TENSORS: dict[Recompute, int] = {"none": 4, "selective": 2, "full": 1}
"""Of our trainer's compiled blocks (:class:`BlockContext`), on an H200 with torch 2.11."""
NUM_GATED_TENSORS_PACKED = 5
"""The same of 4-bit products with adapters that are made again: seven are alive at once, of which two count as brought
back. These are gate and up, what adapters add to each, both sums and the activation (Inductor's code on an H200)."""


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


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """One stage of a plan, with everything its tensors follow from."""

    plan: Plan
    stage: Stage

    @cached_property
    def profile(self) -> EngineProfile:
        """How the engine implements the step."""
        return engine_profile(self.plan.engine)

    @cached_property
    def states(self) -> StateBytes:
        """Bytes per parameter of each state."""
        states = state_bytes(
            engine=self.plan.engine,
            precision=self.plan.recipe.precision,
            zero_stage=self.zero_stage,
            is_pipelined=self.plan.layout.pp > 1,
        )
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

    @cached_property
    def timeline(self) -> Timeline:
        """The moments of the step."""
        counts = tuple(run.count for run in self.held_runs)
        return stage_timeline(counts, has_head=self.stage.has_head, forwards_come_first=self.forwards_come_first)

    @cached_property
    def forwards_come_first(self) -> bool:
        """Whether our trainer's stage has no gradients yet when its last forward pass ends: all of them come first.

        Stages of several chunks are not: gradients of one chunk meet forward passes of another.
        """
        is_plain = self.plan.layout.pp > 1 and SCHEDULE_KINDS[self.plan.layout.schedule].is_plain
        return self.is_own_runtime and is_plain and 1 < self.plan.num_microbatches <= self.in_flight

    @cached_property
    def zero_stage(self) -> int:
        """ZeRO stage of what is held from step to step; our own trainer divides all states in every stage above 0."""
        if self.is_own_runtime:
            return 0 if is_replicated(self.plan.layout) else 3
        return self.plan.layout.zero_stage

    @cached_property
    def is_own_runtime(self) -> bool:
        """Whether our own trainer runs the plan."""
        return is_own_runtime(self.plan)

    @cached_property
    def gathers_parameters(self) -> bool:
        """Whether parameters are gathered unit by unit (FSDP, ZeRO-3; under our trainer also from one rank)."""
        if self.is_own_runtime:
            return not uses_ddp(layout=self.plan.layout, recipe=self.plan.recipe)
        return self.zero_stage == 3

    @cached_property
    def vocabulary_ranks(self) -> int:
        """Data-parallel ranks that divide token table and head by row, whose tokens travel; 1 when each gathers."""
        return self.plan.layout.dp_shard if spreads_vocabulary(self.plan) else 1

    @cached_property
    def exchanges_gradients(self) -> bool:
        """Whether gradients travel as they were made, to be added up in fp32 where they arrive."""
        return exchanges_gradients(self.plan)

    @cached_property
    def has_adapter(self) -> bool:
        """Whether only LoRA matrices are trained."""
        return self.plan.recipe.adapter != "none"

    @cached_property
    def is_distributed_data_parallel(self) -> bool:
        """Replicas whose gradients torch's DDP reduces in flat buckets."""
        torch_engine = self.profile.is_torch
        return torch_engine and not self.gathers_parameters and self.plan.layout.data_parallel_size > 1

    @cached_property
    def has_persistent_gradients(self) -> bool:
        """Gradients that are views of buffers allocated once: Megatron, DeepSpeed, DDP with bucket views."""
        views = self.is_distributed_data_parallel and not self.profile.ddp_copies_gradients
        return self.profile.has_persistent_gradients or views

    @cached_property
    def is_autocast(self) -> bool:
        """fp32 modules under torch autocast: fp32 residual stream and cached low-precision weight copies."""
        torch_engine = self.profile.is_torch
        mixed = self.states.compute_bytes < self.states.weight_bytes
        return torch_engine and mixed and not self.gathers_parameters and not self.has_adapter

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
            return adapter + round(unit.base.full * QUANTISED_BYTES)
        return adapter + unit.base.full * self.states.compute_bytes

    @cached_property
    def in_flight(self) -> float:
        """Activation sets of the whole stage alive at the worst moment."""
        layout = self.plan.layout
        return in_flight_micro_batches(
            schedule=layout.schedule,
            stage=self.stage.index,
            pp=layout.pp,
            vpp=layout.vpp,
            num_microbatches=self.plan.num_microbatches,
        )

    @cached_property
    def rounds(self) -> int:
        """Micro-batches that every block of this stage runs in a step: half of all where the model is there twice."""
        return ceil(self.plan.num_microbatches / self.plan.layout.model_copies)

    @cached_property
    def tokens(self) -> int:
        """T: tokens of one micro-batch on one rank."""
        return ceil(self.plan.recipe.tokens_per_micro_batch / self.plan.layout.cp)

    @cached_property
    def block_context(self) -> BlockContext:
        """What decides the size of a block's saved tensors."""
        recipe, layout, model = self.plan.recipe, self.plan.layout, self.plan.model
        element = 4 if recipe.precision == "fp32" else 2
        return BlockContext(
            hidden_size=model.hidden_size,
            tokens=self.tokens,
            seq_len=recipe.seq_len,
            tp=layout.tp,
            expert_tp=layout.expert_tp,
            is_sequence_parallel=layout.sequence_parallel,
            element_bytes=element,
            residual_bytes=4 if self.is_autocast else element,
            is_eager_attention=recipe.attention == "eager",
            has_fused_softmax=self.profile.sharding in ("megatron", "deepspeed"),
            has_fused_norm=self.profile.has_fused_norm
            or recipe.compile
            or (self.is_own_runtime and not self.plan.cluster.runs_on_processors),
            has_fused_activation=self.profile.has_fused_activation or recipe.compile,
            saves_gathered_input=self.profile.saves_gathered_input and layout.sequence_parallel,
            expands_key_values=False,
            attention_dropout=model.attention_dropout_fraction > 0,
            hidden_dropout=model.hidden_dropout_fraction > 0,
            saves_attention_input=True,
            casts_inputs_separately=self.is_autocast and not recipe.compile,
            gathered_sequence_ratio=layout.cp if self.is_own_runtime else 1,
            copies_exchanged_rows=self.is_own_runtime and layout.ep > 1,
            saves_mlp_input=not self.has_adapter or recipe.lora_targets == "all-linear",
            remakes_elementwise=self.is_own_runtime and recipe.compile,
            num_gated_tensors=self._num_gated_tensors,
            num_norms_remade=2 if self.is_own_runtime and recipe.compile and recipe.recompute == "full" else 0,
            fuses_norms=self.profile.has_transformer_engine,
            has_fp8_inputs=self.profile.has_transformer_engine and self._multiplies_in_fp8,
            has_fp8_activation_inputs=recipe.activation_func_fp8_input_store is True,
            keeps_expert_outputs=self.profile.keeps_expert_outputs,
        )

    @property
    def _num_gated_tensors(self) -> int:
        recipe = self.plan.recipe
        if not (self.is_own_runtime and recipe.compile):
            return 2
        if recipe.adapter == "qlora" and recipe.lora_targets == "all-linear" and recipe.recompute == "full":
            return NUM_GATED_TENSORS_PACKED
        is_plain = recipe.precision != "fp8-mixed" and not (self.has_adapter and recipe.lora_targets == "all-linear")
        return NUM_GATED_TENSORS[recipe.recompute if is_plain else "none"]

    @cached_property
    def _multiplies_in_fp8(self) -> bool:
        return self.plan.recipe.precision == "fp8-mixed" and self.plan.cluster.gpu.peak_flop_per_s("fp8") > 0

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Blocks in runs, then the tables and the head this stage holds."""
        return self._units(self.layer_runs)

    @cached_property
    def held_units(self) -> tuple[Unit, ...]:
        """The same with the blocks in the runs that memory tells apart."""
        runs = tuple((run.layer, run.count) for run in self.held_runs)
        return self.units if runs == self.layer_runs else self._units(runs)

    def _units(self, runs: Runs) -> tuple[Unit, ...]:
        found = [
            self._unit(f"blocks[{number}]", layer.weights, count, layer, number)
            for number, (layer, count) in enumerate(runs)
        ]
        tables = self._table_weights()
        if tables:
            found.append(self._unit("embedding and head", tables, 1, None, -1))
        return tuple(found)

    @cached_property
    def layer_runs(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Runs of identical blocks over all chunks, in model order."""
        return self.stage.layer_runs

    @cached_property
    def held_runs(self) -> tuple[HeldRun, ...]:
        """The same, each cut behind the last of its blocks that is recomputed."""
        return tuple(held_runs(self.layer_runs, self._are_recomputed))

    @cached_property
    def _are_recomputed(self) -> tuple[bool, ...]:
        """Of every block in model order."""
        recipe, num_layers = self.plan.recipe, self.stage.num_layers
        if recipe.recompute == "none":
            return (False,) * num_layers
        if recipe.recompute_layers is None:
            return (True,) * num_layers
        return recomputed_positions(
            chunk_layers=[chunk.num_layers for chunk in self.stage.chunks],
            num_recomputed=recipe.recompute_layers,
            order=self.profile.partial_recompute,
        )

    def _table_weights(self) -> tuple[Weight, ...]:
        model, stage = self.plan.model, self.stage
        weights: tuple[Weight, ...] = ()
        if stage.has_embedding:
            weights += model.embedding_weights + model.side_weights
        if stage.has_head:
            weights += model.final_weights + model.head_weights
            if model.tie_word_embeddings and not stage.has_embedding:
                weights += tuple(w for w in model.embedding_weights if w.split == "vocab")
        return weights

    @cached_property
    def head_elements(self) -> int:
        """Elements of the output projection on this rank, tied or not; 0 without."""
        model = self.plan.model
        if not (self.stage.has_head and model.has_head):
            return 0
        tied = tuple(w for w in model.embedding_weights if w.split == "vocab") if model.tie_word_embeddings else ()
        return hold(model.head_weights + tied, self.plan.layout, is_sharded_by_tensor=False).full

    @cached_property
    def embedding_elements(self) -> int:
        """Elements of the token table on this rank; 0 on other stages."""
        if not self.stage.has_embedding:
            return 0
        return hold(self.plan.model.embedding_weights, self.plan.layout, is_sharded_by_tensor=False).full

    def _unit(self, name: str, weights: tuple[Weight, ...], count: int, layer: LayerSpec | None, run: int) -> Unit:
        by_tensor = self.profile.sharding == "fsdp2"
        adapter = EMPTY
        if self.has_adapter and layer is not None:
            recipe = self.plan.recipe
            added = adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)
            adapter = hold(added, self.plan.layout, is_sharded_by_tensor=by_tensor)
        base = hold(weights, self.plan.layout, is_sharded_by_tensor=by_tensor)
        return Unit(name=name, count=count, base=base, adapter=adapter, is_block=layer is not None, run=run)

    @cached_property
    def saved(self) -> tuple[tuple[SavedTensor, ...], ...]:
        """Saved tensors of one block of every held run, without recomputation."""
        return tuple(
            saved_tensors(run.layer, self.block_context) + self._adapter_tensors(run.layer) for run in self.held_runs
        )

    def _adapter_tensors(self, layer: LayerSpec) -> tuple[SavedTensor, ...]:
        """What LoRA keeps beside the block: the rank-wide products, and dropped-out inputs with their masks."""
        if not self.has_adapter:
            return ()
        element, recipe = self.block_context.element_bytes, self.plan.recipe
        added = adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)
        first = [weight for weight in added if weight.name.endswith("lora_A")]
        inputs = sum(weight.shape[1] // (self.plan.layout.tp if weight.split == "row" else 1) for weight in first)
        dropped = inputs * (element + 1) if recipe.lora_dropout_fraction > 0 else 0
        num_bytes = self.tokens * (len(first) * recipe.lora_rank * element + dropped)
        return (SavedTensor(name="adapters", num_bytes=num_bytes),)

    def kept_bytes(self, run: int) -> Bytes:
        """Bytes one block of a held run keeps from forward to backward when it is recomputed as the recipe says."""
        tensors, recompute = self.saved[run], self.plan.recipe.recompute
        if recompute == "none":
            return sum(tensor.num_bytes for tensor in tensors)
        if recompute == "full":
            return tensors[0].num_bytes
        modules = self.plan.recipe.recompute_modules
        if modules is not None:
            return sum(tensor.num_bytes for tensor in tensors if not set(modules).intersection(tensor.modules))
        if self.profile.selective_policy == "core_attention":
            return sum(tensor.num_bytes for tensor in tensors if not tensor.is_core_attention)
        return tensors[0].num_bytes + self._operation_outputs(run)

    def revived_bytes(self, run: int) -> Bytes:
        """What recomputing a block of a held run brings back at once; single modules come back one after the other."""
        tensors, recipe = self.saved[run], self.plan.recipe
        if recipe.recompute != "selective" or recipe.recompute_modules is None:
            return sum(tensor.num_bytes for tensor in tensors) - self.kept_bytes(run)
        each = (
            sum(tensor.num_bytes for tensor in tensors if module in tensor.modules)
            for module in recipe.recompute_modules
        )
        return max(each, default=0)

    def _operation_outputs(self, run: int) -> Bytes:
        """What torchtitan's policy keeps: attention and every second matrix product, in eager mode also the last one.

        15.5 and, compiled, 13.5 bytes per token and hidden element of a Llama-3-8B block (measured on an H100).
        """
        kept = sum(tensor.num_bytes for tensor in self.saved[run] if tensor.kept_by_operation_policy)
        context = self.block_context
        last_product = context.tokens * context.hidden_size * context.element_bytes
        return kept + (0 if self.plan.recipe.compile else last_product)

    @cached_property
    def times_made_again(self) -> float:
        """How often a recomputed block is made again for one micro-batch: our trainer does so in halves of backward."""
        layout = self.plan.layout
        if not self.is_own_runtime:
            return 1.0
        return times_made_again(pp=layout.pp, vpp=layout.vpp, schedule=layout.schedule, stage=self.stage.index)

    def num_recomputed(self, layer: LayerSpec) -> int:
        """How many of the stage's blocks that are like this one are made again for a micro-batch, each as often."""
        return round(self.times_made_again * sum(run.num_recomputed for run in self._alike(layer)))

    def recomputed_fraction(self, layer: LayerSpec) -> float:
        """How many for every block of the stage that is like it."""
        return self.num_recomputed(layer) / sum(run.count for run in self._alike(layer))

    def _alike(self, layer: LayerSpec) -> Iterator[HeldRun]:
        return (run for run in self.held_runs if run.layer is layer)
