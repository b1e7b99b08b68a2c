"""Compare every family with the classes of transformers: totals, and every weight by name and size.

Needs the ``train`` extra (torch, transformers). Models are instantiated on the meta device: nothing is downloaded,
nothing is allocated. Exits with 1 when a count or a weight differs.

    python benchmarks/parameter_counts_against_transformers.py            # compare, print a table
    python benchmarks/parameter_counts_against_transformers.py --record   # also write the totals the tests hold us to
    python benchmarks/parameter_counts_against_transformers.py --defaults # compare the families' defaults instead
"""

import argparse
import dataclasses
import json
import logging
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import CONFIG_MAPPING

from shardwise.errors import ModelError
from shardwise.families import load_models, read_model
from shardwise.families.catalogue import catalogue_config
from shardwise.families.config import with_our_spelling
from shardwise.families.defaults import family_defaults
from shardwise.families.table import SAME_AS
from shardwise.model import ModelSpec, Weight

MADE_UP = Path(__file__).parents[1] / "tests" / "families" / "data" / "made_up_configs.jsonl"
LAYER = re.compile(r"^(?:.*?\.)?(?:layers|h|blocks|block|layer)\.(\d+)\.(.*)$")
SIDE = re.compile(r"\b(vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline)\b")

SAME_WEIGHT = {"lm_head.decoder": "roberta.embeddings.word_embeddings"}
"""Shared weights that transformers reaches by the other of their two names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model, counted twice."""

    name: str
    ours: int
    theirs: int
    num_weights: int
    differing: tuple[str, ...]
    """Names whose size differs, or that only one side has."""

    @property
    def is_equal(self) -> bool:
        """Whether both counts agree, weight by weight."""
        return self.ours == self.theirs and not self.differing


def main() -> int:
    """Compare, print the table, and say by the exit code whether anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the made-up configs' totals into the test data")
    parser.add_argument("--defaults", action="store_true", help="compare the families' defaults with the classes'")
    parser.add_argument("--only", default="", help="compare only models whose name holds this text")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore")
    if arguments.defaults:
        return report_defaults()
    rows = [json.loads(line) for line in MADE_UP.read_text(encoding="utf-8").splitlines()]
    comparisons = [
        compare(f"made-up {index}: {row['config']['model_type']}", row["config"])
        for index, row in enumerate(rows)
        if arguments.only in row["config"]["model_type"]
    ]
    if arguments.record:
        record(rows, comparisons)
    catalogue = [entry for entry in load_models() if arguments.only in entry.name]
    comparisons += [compare(entry.name, catalogue_config(entry.name)) for entry in catalogue if has_class(entry.name)]
    return report(comparisons)


def report(comparisons: list[Comparison]) -> int:
    """Print one line per model and a last line that sums up."""

    print(f"transformers {transformers.__version__}, torch {torch.__version__}, meta device")
    print(f"{'model':<44} {'shardwise':>18} {'transformers':>18} {'difference':>11} {'weights':>8}")
    for row in comparisons:
        print(f"{row.name:<44} {row.ours:>18,} {row.theirs:>18,} {row.ours - row.theirs:>11,} {row.num_weights:>8,}")
        for name in row.differing[:6]:
            print(f"    differs: {name}")
    wrong = [row.name for row in comparisons if not row.is_equal]
    weights = sum(row.num_weights for row in comparisons)
    print(f"{len(comparisons)} models, {weights:,} weights compared, {len(wrong)} models differ")
    return 1 if wrong else 0


def record(rows: list[dict[str, object]], comparisons: list[Comparison]) -> None:
    """Write transformers' totals beside the made-up configs."""

    lines = [
        json.dumps({"config": row["config"], "num_params": comparison.theirs})
        for row, comparison in zip(rows, comparisons, strict=True)
    ]
    MADE_UP.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {MADE_UP} with the totals of transformers {transformers.__version__}")


def compare(name: str, config: Mapping[str, object]) -> Comparison:
    """Count one config with both."""
    try:
        spec = read_model(config)
        theirs = dict(their_weights(config))
    except (ModelError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        message = f"{type(error).__name__}: {str(error)[:200]}"
        return Comparison(name=name, ours=-1, theirs=0, num_weights=0, differing=(message,))
    has_two_stacks = len({layer.stack for layer in spec.layers}) > 1
    ours = merged(((key, weight.num_params) for key, weight in our_weights(spec)), has_two_stacks)
    found = merged(theirs.items(), has_two_stacks)
    keys = sorted(ours.keys() | found.keys())
    differing = tuple(
        f"{key}: ours {ours.get(key)}, theirs {found.get(key)}" for key in keys if ours.get(key) != found.get(key)
    )
    return Comparison(
        name=name,
        ours=spec.num_params,
        theirs=sum(theirs.values()),
        num_weights=len(found),
        differing=differing,
    )


def our_weights(spec: ModelSpec) -> Iterator[tuple[str, Weight]]:
    """Our weights under the names transformers would give them."""
    stacks: dict[str, int] = defaultdict(int)
    for layer in spec.layers:
        for weight in layer.weights:
            yield f"{layer.stack}.{stacks[layer.stack]}.{weight.name}", weight
        stacks[layer.stack] += 1
    for weight in spec.embedding_weights + spec.final_weights + spec.head_weights + spec.side_weights:
        yield weight.name, weight


def their_weights(config: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    """Every unique parameter of the transformers model and its size."""
    model = instantiate(config)
    named = list(model.named_parameters())
    class_name, prefix = type(model).__name__, f"{model.base_model_prefix}."
    is_bare = class_name.endswith("Model") and "LMHead" not in class_name and "Encoder" not in class_name
    for name, parameter in named:
        yield (f"{prefix}{name}" if is_bare and not name.startswith(prefix) else name), parameter.numel()


def merged(weights: Iterable[tuple[str, int]], has_two_stacks: bool) -> dict[str, int]:
    """Sizes by a common name: parts of one matrix, fused gates and per-head norms are summed."""
    sizes: dict[str, int] = defaultdict(int)
    for name, size in weights:
        common = common_name(name)
        sizes[common if has_two_stacks else re.sub(r"^(encoder|decoder)\.(\d+)\.", r"layer.\2.", common)] += size
    return dict(sizes)


def common_name(name: str) -> str:
    """A name both sides agree on."""
    name = re.sub(r"\[\w+\]$", "", name).removesuffix(".weight").removesuffix("_weight")
    name = re.sub(r"\.norms\.\d+$", "", name)
    name = SAME_WEIGHT.get(name, name.replace("in_proj_bias", "in_proj.bias"))
    name = re.sub(r"experts\.mlp\.(w1|v1)$|experts\.(gate_proj|up_proj|gate_up_proj)$", "experts.into", name)
    name = re.sub(r"experts\.mlp\.w2$", "experts.down_proj", name)
    name = re.sub(r"experts\.(gate_proj|up_proj|gate_up_proj)_bias$", "experts.into_bias", name)
    if SIDE.search(name):
        return name
    name = re.sub(r"\b(language_model|text_model)\.", "", name)
    stack = "encoder" if re.search(r"\bencoder\.(block|layers?)\.\d", name) else "decoder"
    if re.match(r"(encoder|decoder)\.\d+\.", name):
        return name
    match = LAYER.match(name)
    return f"{stack}.{match[1]}.{match[2]}" if match else name


def has_class(name: str) -> bool:
    """Whether transformers itself has a class for a model of the catalogue."""

    model_type = str(catalogue_config(name).get("model_type"))
    return SAME_AS.get(model_type, model_type) in CONFIG_MAPPING


def instantiate(config: Mapping[str, object]):  # noqa: ANN201
    """The transformers model of a config, on the meta device, with its tied weights tied."""

    values = dict(config)
    model_type = str(values.pop("model_type"))
    built = CONFIG_MAPPING[SAME_AS.get(model_type, model_type)].from_dict(values)
    for part in (built, getattr(built, "text_config", None)):
        if part is not None:
            part.pad_token_id = 0
    architectures = values.get("architectures") or [""]
    model_class = getattr(transformers, architectures[0], None) or default_class(built)
    with torch.device("meta"):
        model = model_class(built)
        model.tie_weights()
    return model


def default_class(built: object) -> type:
    """The class for generation when the config names none."""

    mappings = ("ImageTextToText", "CausalLM", "Seq2SeqLM", "MaskedLM")
    for name in mappings:
        mapping = getattr(transformers, f"AutoModelFor{name}")._model_mapping
        if type(built) in mapping:
            return mapping[type(built)]
    raise ValueError(f"no class for {type(built).__name__}")


def report_defaults() -> int:
    """Compare every default we state with the class that states it."""

    folder = Path(__file__).parents[1] / "src" / "shardwise" / "catalog" / "models"
    families = json.loads((folder / "family_defaults.json").read_text(encoding="utf-8"))["families"]
    wrong = 0
    for model_type in families:
        fields = dataclasses.fields(CONFIG_MAPPING[model_type])
        raw = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        raw |= {
            field.name: field.default_factory() for field in fields if field.default_factory is not dataclasses.MISSING
        }
        theirs = with_our_spelling(raw) | raw | {"rope_theta": CONFIG_MAPPING[model_type].default_theta}
        for name, value in family_defaults(model_type).items():
            stated = theirs.get(name)
            stated = list(stated) if isinstance(stated, tuple) else stated
            if stated is not None and stated != value:
                wrong += 1
                print(f"{model_type}.{name}: ours {value}, theirs {stated}")
    print(f"{len(families)} families, {wrong} defaults differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
