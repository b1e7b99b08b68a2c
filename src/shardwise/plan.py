"""The plan: model + cluster + recipe + layout + engine. The one thing that travels through the whole loop."""

import json
from dataclasses import dataclass, field, fields
from html import escape

from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES, OWN_ENGINE, EngineName
from shardwise.errors import PlanError
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

    def _repr_html_(self) -> str:
        """A notebook's rendering: the plan on one line."""
        return f"<pre>{escape(repr(self))}</pre>"

    def to_dict(self) -> dict[str, object]:
        """The plan as the document that ``read_plan`` turns into an equal plan; fields left open are left out.

        Raises:
            PlanError: the model or the cluster was built by hand and has no written form.
        """
        return {
            "schema": PLAN_SCHEMA,
            "model": _written_form(self.model.spec_json, "model", self.model.name),
            "cluster": _written_form(self.cluster.spec_json, "cluster", self.cluster.node.id),
            "recipe": _written_fields(self.recipe),
            "layout": _written_fields(self.layout),
            "engine": self.engine,
        }

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


def _written_form(spec_json: str, part: str, name: str) -> object:
    if not spec_json:
        raise PlanError(
            f"the {part} {name} was built by hand and does not say what it was read from",
            code="plan-hand-made",
            fix=f"read the {part} from a name, a file or a mapping",
        )
    found: object = json.loads(spec_json)
    return found


def _written_fields(record: Recipe | Layout) -> dict[str, object]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }
