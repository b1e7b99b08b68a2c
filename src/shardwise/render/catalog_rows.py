"""The catalogue as sections of rows, for a table, for JSON, and for one entry with its references."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from shardwise.catalog import Link, load_gpus, load_networks, load_nodes, load_prices
from shardwise.catalog.hardware.facts import Source, load_sources
from shardwise.cluster import Gpu, Node, Price
from shardwise.families import ModelEntry, load_models, read_model
from shardwise.families.catalogue import catalogue_name
from shardwise.model import AttentionSpec, DenseSpec, MambaSpec, MoeSpec

CATALOG_SCHEMA = "shardwise.catalog/1"

CatalogRow = Gpu | Node | Link | Price | ModelEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a model of the catalogue is made of: its sizes, its counts, and every distinct kind of block part."""

    num_active_params: int
    num_embedding_params: int
    num_side_params: int
    """Vision tower, projector and other attachments."""
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention: tuple[AttentionSpec, ...]
    mamba: tuple[MambaSpec, ...]
    feed_forward: tuple[DenseSpec, ...]
    experts: tuple[MoeSpec, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One row with the section it is from and the references its source keys stand for."""

    section: str
    row: CatalogRow
    references: tuple[Source, ...]
    shape: ModelShape | None = None
    """Sizes of a model; ``None`` for other rows."""


def sections() -> Mapping[str, Sequence[CatalogRow]]:
    """Every row of the catalogue by section."""
    return {
        "gpus": load_gpus(),
        "nodes": load_nodes(),
        "networks": load_networks(),
        "prices": load_prices(),
        "models": load_models(),
    }


def row_id(row: CatalogRow) -> str:
    """The name a row is found by; prices are found by their GPU."""
    if isinstance(row, Price):
        return row.gpu_id
    return row.name if isinstance(row, ModelEntry) else row.id


def rows_with(section: str, word: str) -> tuple[CatalogRow, ...]:
    """The rows of a section whose id, name or provider contains ``word``."""
    wanted = word.casefold()
    return tuple(row for row in sections()[section] if any(wanted in name.casefold() for name in _names(row)))


def _names(row: CatalogRow) -> tuple[str, ...]:
    if isinstance(row, Price):
        return (row.gpu_id, row.provider, row.sku, row.kind)
    if isinstance(row, ModelEntry):
        return (row.name, *row.aliases, row.model_type)
    if isinstance(row, Node):
        return (row.id, row.name, row.provider, row.gpu.id)
    return (row.id, row.name) if isinstance(row, Gpu) else (row.id, row.kind)


def find_entry(entry_id: str) -> CatalogEntry | None:
    """The GPU, node, network or model with exactly this id, or the model with this alias, whatever the case."""
    wanted = (catalogue_name(entry_id) or entry_id).casefold()
    for section, rows in sections().items():
        for row in rows:
            if section != "prices" and row_id(row).casefold() == wanted:
                shape = model_shape(row.name) if isinstance(row, ModelEntry) else None
                return CatalogEntry(section=section, row=row, references=_references(row.source), shape=shape)
    return None


def sections_with(word: str) -> tuple[str, ...]:
    """The sections that have an entry whose name contains ``word``."""
    return tuple(section for section in sections() if word and rows_with(section, word))


def model_shape(name: str) -> ModelShape:
    """The shape of a model of the catalogue, from its config."""
    model = read_model(name)
    return ModelShape(
        num_active_params=model.num_active_params,
        num_embedding_params=model.num_embedding_params,
        num_side_params=model.num_side_params,
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        tie_word_embeddings=model.tie_word_embeddings,
        attention=model.attention_shapes,
        mamba=model.mamba_shapes,
        feed_forward=model.dense_shapes,
        experts=model.moe_shapes,
        assumptions=model.assumptions,
    )


def _references(keys: str) -> tuple[Source, ...]:
    wanted = keys.split(";")
    return tuple(source for source in load_sources() if source.key in wanted)


def section_object(section: str, rows: Sequence[CatalogRow]) -> dict[str, object]:
    """Rows of one section as JSON, under the records' own field names."""
    return {"schema": CATALOG_SCHEMA, "section": section, "rows": [asdict(row) for row in rows]}


def entry_object(entry: CatalogEntry) -> dict[str, object]:
    """One row with its references as JSON."""
    return {
        "schema": CATALOG_SCHEMA,
        "section": entry.section,
        "rows": [asdict(entry.row)],
        **({} if entry.shape is None else {"shape": asdict(entry.shape)}),
        "references": [asdict(reference) for reference in entry.references],
    }


def sizes_object() -> dict[str, object]:
    """How many entries each section has."""
    return {"schema": CATALOG_SCHEMA, "sections": {section: len(rows) for section, rows in sections().items()}}
