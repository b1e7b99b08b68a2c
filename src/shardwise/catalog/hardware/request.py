"""A cluster as it was asked for: the validated fields of a mapping or file, and their canonical JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from typing import TypeGuard

from shardwise.catalog.hardware.names import gpu_id_of, node_id_of
from shardwise.errors import ClusterError

MAX_GPUS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A numeric key that a user may give, with its unit in its name and the range that makes sense."""

    key: str
    low: float
    high: float
    meaning: str
    is_count: bool = False


Settings = tuple[tuple[str, float], ...]
"""The numeric keys that a user gave, each with its number; the unit is in the key."""

COUNT_FIELDS = (
    Field(key="num_gpus", low=1, high=MAX_GPUS, meaning="all GPUs together, instead of num_nodes", is_count=True),
    Field(key="num_nodes", low=1, high=MAX_GPUS, meaning="servers", is_count=True),
    Field(key="gpus_per_node", low=1, high=1024, meaning="GPUs in one server", is_count=True),
)
OVERRIDE_FIELDS = (
    Field(key="memory_gib", low=0.001, high=16384, meaning="memory of one GPU as the framework reports it"),
    Field(key="usd_per_gpu_hour", low=0, high=10_000, meaning="your price for one GPU and hour"),
    Field(key="missing_gpus", low=0, high=1023, meaning="GPUs that the last server lacks, as dead ones", is_count=True),
    Field(key="host_memory_gib", low=0, high=1e6, meaning="RAM of one server"),
    Field(key="nvme_tb", low=0, high=1e5, meaning="local NVMe of one server"),
    Field(key="scale_up_gb_per_s", low=0.001, high=1e5, meaning="fast links of one GPU, all together, one direction"),
    Field(key="scale_up_domain_gpus", low=1, high=MAX_GPUS, meaning="GPUs joined by the fast links", is_count=True),
    Field(key="network_gbit_per_s_per_node", low=0.001, high=1e6, meaning="all NICs of one server, one direction"),
    Field(key="network_gb_per_s_per_gpu", low=0.0001, high=1e5, meaning="one GPU's share of the NICs, one direction"),
    Field(key="network_latency_us", low=0, high=1e6, meaning="one small message between servers, end to end"),
    Field(
        key="network_oversubscription_ratio", low=1, high=1000, meaning="bandwidth below over above a pod's switches"
    ),
    Field(key="network_pod_gpus", low=1, high=MAX_GPUS, meaning="GPUs that meet at full rate", is_count=True),
    Field(key="network_rails", low=1, high=64, meaning="first switches that a server's NICs hang on", is_count=True),
)
GPU_FIELDS = (
    Field(key="memory_gib", low=0.001, high=16384, meaning="memory as the framework reports it"),
    Field(key="memory_bandwidth_gb_per_s", low=0.001, high=1e6, meaning="device memory bandwidth"),
    *(
        Field(key=f"{dtype}_tflop_per_s", low=1e-6, high=1e6, meaning=f"dense {dtype} peak, fp32 accumulation")
        for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
    ),
    Field(key="scale_up_gb_per_s", low=0.001, high=1e5, meaning="fast links, all together, one direction"),
    Field(key="peer_gb_per_s", low=0.001, high=1e5, meaning="fast link to one peer, one direction"),
    Field(key="pcie_gb_per_s", low=0.001, high=1e5, meaning="link to the host, one direction"),
    Field(key="sm_count", low=1, high=1e5, meaning="multiprocessors or compute units", is_count=True),
    Field(key="tdp_w", low=0, high=1e5, meaning="power limit"),
)
_TEXT_KEYS = ("name", "price_source", "price_date")
_GPU_TEXT_KEYS = ("name", "based_on", "vendor", "arch", "scale_up")
_CLUSTER_KEYS = (
    *("node", "gpu", "network"),
    *(field.key for field in COUNT_FIELDS),
    *(field.key for field in OVERRIDE_FIELDS),
    *_TEXT_KEYS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """A user's own GPU: from nothing, or a catalogue part with some figures replaced."""

    name: str = ""
    based_on: str = ""
    vendor: str = ""
    arch: str = ""
    scale_up: str = ""
    settings: Settings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What was asked for, checked one field at a time but not yet put together."""

    node_id: str = ""
    gpu_id: str = ""
    own_gpu: GpuRequest | None = None
    num_gpus: int | None = None
    num_nodes: int = 1
    gpus_per_node: int | None = None
    network_id: str = ""
    name: str = ""
    price_source: str = ""
    price_date: str = ""
    overrides: Settings = ()


def value_of(settings: Settings, key: str) -> float | None:
    """The number given under ``key``; ``None`` when it was not given."""
    return next((value for given_key, value in settings if given_key == key), None)


def read_request(fields: Mapping[str, object]) -> ClusterRequest:
    """The request that a mapping spells.

    Raises:
        ClusterError: ``cluster-field`` for keys that are unknown, missing or exclude each other, ``cluster-value``
            for values out of range, and the name errors.
    """
    _check_keys(fields, known=_CLUSTER_KEYS, where="a cluster")
    node, gpu = fields.get("node"), fields.get("gpu")
    if (node is None) == (gpu is None):
        given = "neither" if node is None else "both"
        raise ClusterError(
            f'a cluster names a server ("node") or a GPU ("gpu"); {given} was given',
            code="cluster-field",
            fix='use {"node": "dgx-h100", "num_nodes": 2} or {"gpu": "h100-sxm", "num_gpus": 16}',
        )
    num_gpus = _count(fields, "num_gpus")
    num_nodes = _count(fields, "num_nodes")
    if num_gpus is not None and num_nodes is not None:
        raise ClusterError(
            f"num_gpus={num_gpus} and num_nodes={num_nodes} were both given",
            code="cluster-field",
            fix="leave out num_gpus and say gpus_per_node",
        )
    overrides = _settings(fields, OVERRIDE_FIELDS)
    _check_one_network_rate(overrides)
    found = node_id_of(_text(fields, "node")) if node is not None else None
    return ClusterRequest(
        node_id=found.node_id if found else "",
        gpu_id=gpu_id_of(_text(fields, "gpu")) if isinstance(gpu, str) else "",
        own_gpu=_own_gpu(gpu) if gpu is not None and not isinstance(gpu, str) else None,
        num_gpus=num_gpus,
        num_nodes=(num_nodes or 1) * (found.num_nodes if found else 1),
        gpus_per_node=_count(fields, "gpus_per_node"),
        network_id=_text(fields, "network"),
        name=_text(fields, "name"),
        price_source=_text(fields, "price_source"),
        price_date=_text(fields, "price_date"),
        overrides=overrides,
    )


def request_json(request: ClusterRequest) -> str:
    """Canonical JSON from which :func:`read_request` gives an equal request."""
    fields: dict[str, object] = dict(request.overrides)
    if request.own_gpu:
        own = request.own_gpu
        texts = {key: text for key in _GPU_TEXT_KEYS if (text := _gpu_text(own, key))}
        fields["gpu"] = texts | dict(own.settings)
    texts = {
        "node": request.node_id,
        "gpu": request.gpu_id,
        "network": request.network_id,
        "name": request.name,
        "price_source": request.price_source,
        "price_date": request.price_date,
    }
    fields |= {key: text for key, text in texts.items() if text}
    if request.num_gpus is not None:
        fields["num_gpus"] = request.num_gpus
    else:
        fields["num_nodes"] = request.num_nodes
    if request.gpus_per_node is not None:
        fields["gpus_per_node"] = request.gpus_per_node
    return json.dumps(fields, sort_keys=True, separators=(", ", ": "), allow_nan=False)


def _gpu_text(own: GpuRequest, key: str) -> str:
    texts = (own.name, own.based_on, own.vendor, own.arch, own.scale_up)
    return texts[_GPU_TEXT_KEYS.index(key)]


def _own_gpu(fields: object) -> GpuRequest:
    if not isinstance(fields, Mapping):
        raise ClusterError(
            f'"gpu" is a {type(fields).__name__}; it is a name or a table of figures',
            code="cluster-value",
            fix='use "gpu": "h100-sxm"',
        )
    known = (*_GPU_TEXT_KEYS, *(field.key for field in GPU_FIELDS))
    _check_keys(fields, known=known, where="a GPU")
    based_on = _text(fields, "based_on")
    return GpuRequest(
        name=_text(fields, "name"),
        based_on=gpu_id_of(based_on) if based_on else "",
        vendor=_text(fields, "vendor"),
        arch=_text(fields, "arch"),
        scale_up=_text(fields, "scale_up"),
        settings=_settings(fields, GPU_FIELDS),
    )


def _check_keys(fields: Mapping[str, object], *, known: tuple[str, ...], where: str) -> None:
    for key in fields:
        if key in known:
            continue
        shown = str(key)[:60]
        close = get_close_matches(shown, known, n=1, cutoff=0.4)
        raise ClusterError(
            f"{shown!r} is not a field of {where}; known are {', '.join(known)}",
            code="cluster-field",
            fix=f"use {close[0]}" if close else f"remove {shown!r}",
        )


def _check_one_network_rate(overrides: Settings) -> None:
    per_node = value_of(overrides, "network_gbit_per_s_per_node")
    per_gpu = value_of(overrides, "network_gb_per_s_per_gpu")
    if per_node is not None and per_gpu is not None:
        raise ClusterError(
            f"two network rates were given: {per_node:g} Gb/s per node and {per_gpu:g} GB/s per GPU",
            code="cluster-field",
            fix="leave out network_gb_per_s_per_gpu",
        )


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if isinstance(value, str) and 0 < len(value.strip()) <= 200 and value.isprintable():
        return value.strip()
    raise ClusterError(
        f"{key!r} is {_shown(value)}; it is a text of 1 to 200 printable characters",
        code="cluster-value",
        fix=f'write {key} as a text in quotes, such as "ib-ndr"',
    )


def _settings(fields: Mapping[str, object], known: tuple[Field, ...]) -> Settings:
    given = (field for field in known if fields.get(field.key) is not None)
    return tuple((field.key, _number(fields[field.key], field)) for field in given)


def _count(fields: Mapping[str, object], key: str) -> int | None:
    value = fields.get(key)
    field = next(field for field in COUNT_FIELDS if field.key == key)
    return None if value is None else int(_number(value, field))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _number(value: object, field: Field) -> float:
    """The value when it is a finite number in the field's range; text and yes/no are refused."""
    if _is_number(value) and field.low <= value <= field.high:
        is_whole = value == math.floor(value)
        if is_whole or not field.is_count:
            return int(value) if is_whole else float(value)
    kind = "a whole number" if field.is_count else "a number"
    low, high = _shown_limit(field.low), _shown_limit(field.high)
    raise ClusterError(
        f"{field.key} is {_shown(value)}; it is {kind} from {low} to {high} ({field.meaning})",
        code="cluster-size" if field in COUNT_FIELDS else "cluster-value",
        fix=f"give {field.key} {kind} from {low} to {high}",
    )


def _shown(value: object) -> str:
    """The value cut to a line; ``repr`` of a huge integer can itself fail."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "an integer of more than 18 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _shown_limit(limit: float) -> str:
    return f"{int(limit):,}" if limit == int(limit) else f"{limit:g}"
