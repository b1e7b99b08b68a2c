"""Whether every causal family of transformers is trained, and why not, as the program itself says."""

import json
from collections import defaultdict
from dataclasses import replace
from textwrap import fill

from shapes import plan
from shardwise.errors import ModelError, PlanError
from shardwise.families import read_model
from shardwise.families.table import FAMILIES
from shardwise.launch.support import GAPS, require_documents
from shardwise.launch.transformers_models import EAGER_ALONE
from shardwise.layout import Layout
from shardwise.step.native_engine import DIVIDED_FAMILIES, OWN_DECODER_TYPES
from shardwise.train.job import DataSpec
from train.models import make_job
from train.tiny_families import families, tiny_fields

UNKNOWN = "a family that is not known, of which no plan can be made"
PACKED = DataSpec(source="documents.jsonl", packing="documents")


def refusal(model_type: str) -> str:
    """Why nothing of a family is trained; empty where it is."""
    try:
        model = read_model(_fields(model_type))
    except ModelError as error:
        return UNKNOWN if error.code == "model-unknown-family" else error.message
    asked = plan(model, engine="native", layout=Layout(), seq_len=16, attention="eager")
    found = next((gap.what for gap in GAPS if gap.is_asked(asked)), "")
    return found.replace("training of {model_type}, whose", "a family whose").replace("training of {model_type}, ", "")


def packed_refusal(model_type: str) -> bool:
    """Whether documents of a family that is trained cannot be kept apart."""
    try:
        require_documents(replace(make_job(model=tiny_fields(model_type), seq_len=16, attention="eager"), data=PACKED))
    except PlanError:
        return True
    return False


def _fields(model_type: str) -> dict:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type in FAMILIES:
        return tiny_fields(model_type)
    try:
        whole = CONFIG_MAPPING[model_type]().to_dict()
    except Exception:  # noqa: BLE001 - a class that has no config of its own is not known either
        whole = {}
    return json.loads(json.dumps({**whole, "model_type": model_type}, default=str))


def page() -> str:
    """The text of docs/families-that-train.md."""
    reasons = {name: refusal(name) for name in families()}
    trained = sorted(name for name, reason in reasons.items() if not reason)
    refused: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        if reason:
            refused[reason].append(name)
    mixed = [name for name in trained if packed_refusal(name)]
    own = [name for name in trained if name in OWN_DECODER_TYPES]
    divided = [name for name in trained if name in DIVIDED_FAMILIES and name not in own]
    eager = [name for name in trained if name in EAGER_ALONE]
    parts = [
        "# Families that train",
        f"`AutoModelForCausalLM` of transformers 5.24 builds models of {len(reasons)} families. {len(trained)} are "
        f"trained and {len(reasons) - len(trained)} are refused by name before anything starts. `make families` probes "
        "every one that is trained.",
        "## Trained",
        ", ".join(trained),
        f"Our own decoder computes {', '.join(own)}, under every layout; transformers builds the others, over "
        f"data-parallel ranks. Tensor parallelism (with sequence parallelism) and expert parallelism divide "
        f"{', '.join(divided)} as well, by the splits of their weights in `shardwise/families`; context "
        f"parallelism and pipelines do not. `--attention eager` is wanted by {', '.join(eager)}.",
    ]
    if mixed:
        parts.append(f"`--mask-documents` and `--packing documents` are refused for {', '.join(mixed)}.")
    parts.append("## Refused")
    for reason, names in sorted(refused.items(), key=lambda pair: (len(pair[1]), pair[0])):
        parts += [f"### Refused: {reason}", ", ".join(sorted(names))]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _wrapped(part: str) -> str:
    return part if part.startswith("#") else fill(part, 120, break_on_hyphens=False)
