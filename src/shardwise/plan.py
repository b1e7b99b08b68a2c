"""The plan: model + cluster + recipe + layout + engine. The one thing that travels through the whole loop."""

from dataclasses import dataclass, field, fields

from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES, OWN_ENGINE, EngineName
from shardwise.fields import ABOUT, Field, plan_field
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.recipe import Recipe

PLAN_SCHEMA = "shardwise.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete description of one training run."""

    model: ModelSpec = field(metadata={ABOUT: Field("", synonyms=("model_name", "config"))})
    cluster: Cluster = field(metadata={ABOUT: Field("", synonyms=("hardware", "gpus", "gpu", "node"))})
    recipe: Recipe = field(metadata={ABOUT: Field("", synonyms=("training", "train"))})
    layout: Layout = field(metadata={ABOUT: Field("", synonyms=("parallelism", "parallel", "strategy"))})
    engine: EngineName = plan_field(
        OWN_ENGINE, "who implements the step", choices=tuple(ENGINES), synonyms=("framework", "backend")
    )
    assumptions: tuple[str, ...] = field(default=(), compare=False)
    """Sentences for the user: what the plan file left open and how it was filled. Not part of the plan's identity."""
    open_fields: frozenset[str] = field(default=frozenset(), compare=False)
    """What the plan file left open whose filling follows from other fields. Not part of the plan's identity."""

    def __repr__(self) -> str:
        """The model, the hardware and how the layout differs from the default one."""
        plain = Layout()
        names = [one.name for one in fields(Layout) if getattr(self.layout, one.name) != getattr(plain, one.name)]
        layout = " ".join(f"{name}={getattr(self.layout, name)}" for name in names) or "one rank"
        return f"Plan({self.model!r} on {self.cluster!r}, {layout}, {self.engine})"

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per data-parallel rank and optimizer step."""
        if self.recipe.global_batch_size is None:
            return self.layout.pp
        return self.recipe.global_batch_size // (self.recipe.micro_batch_size * self.layout.data_parallel_size)

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.num_microbatches * self.recipe.micro_batch_size * self.layout.data_parallel_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.global_batch_size * self.recipe.seq_len
