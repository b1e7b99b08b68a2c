"""The plan that files of other tools mean, with the model, the cluster and the fields that a command line adds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.catalog import read_cluster
from shardwise.cluster import Cluster
from shardwise.errors import PlanError, ShardwiseError
from shardwise.exchange.documents import read_documents
from shardwise.exchange.facts import scalar_of
from shardwise.exchange.model_name import model_source
from shardwise.exchange.model_sizes import against_model
from shardwise.exchange.names import CLUSTER_PLACE, FILE, OPTION, Claim
from shardwise.exchange.reading import Reading, plan_document, read_files
from shardwise.exchange.recognise import PLAN_KEYS, views_of
from shardwise.families import read_model
from shardwise.fields import field_named, plan_fields
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.plan_file.values import check_fields
from shardwise.recipe import Recipe
from shardwise.rules.changes import LAYOUT_FIELDS, RECIPE_FIELDS

COUNTED = ("world_size", "num_microbatches")
"""Numbers that a plan file does not hold and that questions may be answered by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRun:
    """A reading with the model and the cluster, as far as they are known."""

    reading: Reading
    model: ModelSpec | None
    cluster: Cluster | None

    @property
    def model_name(self) -> str:
        """The model's name: ours, or else that of the files."""
        return self.model.name if self.model is not None else str(self.reading.value("model") or "")

    def plan(self) -> Plan:
        """The plan of the files.

        Raises:
            PlanError: something is open or contradicts itself.
        """
        if self.model is None or self.cluster is None:
            missing = "cluster" if self.model is not None else "model"
            said = f" beyond the name {self.model_name[:60]}" if self.model_name and missing == "model" else ""
            raise PlanError(
                f"the files do not say what the {missing} is{said}",
                code="import-open",
                fix="add --cluster 8xh100-sxm"
                if missing == "cluster"
                else "add --model llama-3.1-8b, or a config.json",
            )
        sources = [json.loads(text) for text in (self.model.spec_json, self.cluster.spec_json)]
        num_layers = self.model.num_hidden_layers
        return read_plan(plan_document(self.reading, model=sources[0], cluster=sources[1], num_layers=num_layers))


def read_foreign(
    files: Sequence[Path], *, model: str | None, cluster: str | None, settings: Mapping[str, object]
) -> ForeignRun:
    """What the files say together with what stands beside them on the command line."""
    on = read_cluster(cluster) if cluster is not None else None
    claims = [_setting(name, value) for name, value in settings.items() if value is not None]
    if on is not None:
        claims.append(Claim(field="world_size", value=on.num_gpus, place=CLUSTER_PLACE, strength=FILE))
    reading = read_files(files, settings=claims)
    source = model if model is not None else model_source(reading)
    if source is None:
        return ForeignRun(reading=reading, model=None, cluster=on)
    named, claim = read_model(source), reading.claim("model")
    place = f"--model {source}" if model is not None else claim.place if claim is not None else "the model"
    against = (*reading.contradictions, *against_model(reading, named, place=place))
    return ForeignRun(reading=replace(reading, contradictions=against), model=named, cluster=on)


def is_foreign(path: Path) -> bool:
    """Whether a file is one of another tool, so that it is no plan of ours; what is wrong with it is not said here."""
    if not path.is_file():
        return False
    try:
        documents = read_documents(path)
    except ShardwiseError:
        return False
    return bool(views_of(documents)) and not any(
        document.keys() & PLAN_KEYS for document in documents if not document.program
    )


def _setting(name: str, value: object) -> Claim:
    """What the user says of a field, checked as in a plan file."""
    sections = {"recipe": Recipe, "layout": Layout}
    names = {"recipe": RECIPE_FIELDS, "layout": LAYOUT_FIELDS}
    section = next((one for one, fields in names.items() if name in fields), "")
    if section:
        checked = check_fields(section, {name: _value(value)}, plan_fields(sections[section]))[name]
    elif name in COUNTED:
        counted = replace(field_named(Layout, "tp"), name=name)
        checked = check_fields("", {name: _value(value)}, (counted,))[name]
    else:
        checked = check_fields("", {name: _value(value)}, plan_fields(Plan)[-1:])[name]
    return Claim(field=name, value=checked, place="--set", strength=OPTION)


def _value(value: object) -> object:
    """A word of the command line as a plan file would hold it."""
    if not isinstance(value, str):
        return value
    if "," in value:
        return [scalar_of(part) for part in value.split(",")]
    return value if value == "none" else scalar_of(value)
