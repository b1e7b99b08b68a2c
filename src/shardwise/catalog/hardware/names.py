"""Finds the part or server of the catalogue that a name means ("H100 80GB HBM3", "p5.48xlarge", "dgx h100")."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache

from shardwise.catalog.hardware.gpus import GpuEntry, gpu_entries
from shardwise.catalog.hardware.nodes import load_node, node_names
from shardwise.cluster import Gpu
from shardwise.errors import ClusterError
from shardwise.units import GB_PER_S, format_gib

_MAKERS = ("nvidia", "amd", "intel", "google", "tesla", "geforce", "instinct")
_IDLE_WORDS = frozenset({*_MAKERS, "gpu", "gpus", "tensor", "core"})
_WORDS_OF_MANY_SERVERS = frozenset({"sxm", "pcie", "bm", "vm"})
_TRAY_SUFFIX = "-tray"
_MAX_LISTED = 8
_MAX_CLOSE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One accelerator or one server; ``num_nodes`` is above 1 for a rack."""

    gpu_id: str = ""
    node_id: str = ""
    num_nodes: int = 1
    assumption: str = ""
    """Which of several parts the name is taken for."""


def find_exactly(name: str) -> Found | None:
    """The part or server spelled like this, ignoring case and punctuation; ``None`` when there is none."""
    return _exact_names().get(_squash(name))


def find_part(name: str, *, prefix: str = "", assumes_module: bool = False) -> Found | None:
    """The part or server whose words include all those of ``name``; ``None`` when there is none.

    Args:
        name: what was typed, without a count.
        prefix: the count as typed, such as ``64x``, so that the fix can repeat it.
        assumes_module: take a name that fits several parts for the one SXM module that is called so.

    Raises:
        ClusterError: ``cluster-ambiguous-gpu`` or ``cluster-ambiguous-node`` when several fit.
    """
    found = find_exactly(name)
    if found:
        return found
    words = _words(name)
    gpus = _gpus_with(words)
    if len(gpus) > 1:
        module = _exact_names().get(f"{_squash(name)}sxm") if assumes_module else None
        if module is None:
            raise _ambiguous_gpu(name, gpus, prefix)
        others = ", ".join(entry.gpu.id for entry in gpus if entry.gpu.id != module.gpu_id)
        return replace(module, assumption=f"{_shown(name)} is taken for {module.gpu_id}; other parts are {others}")
    if gpus:
        return Found(gpu_id=gpus[0].gpu.id)
    nodes = _nodes_with(words)
    if len(nodes) > 1:
        raise _ambiguous_node(name, nodes, prefix)
    return Found(node_id=nodes[0]) if nodes else None


def unknown_name(name: str, *, prefix: str = "") -> ClusterError:
    """The error for a name that fits nothing, with the closest known ones."""
    ids = _closest_ids(_squash(name)[:80])
    hint = f"; close are {', '.join(ids)}" if ids else ""
    return ClusterError(
        f"no GPU, server or instance is called {_shown(name)}{hint}",
        code="cluster-unknown",
        fix=f"use {prefix}{ids[0]}"
        if ids
        else "list the known names with `shardwise catalog gpus`, or write a TOML file",
    )


def _closest_ids(typed: str) -> tuple[str, ...]:
    """The most similar names; parts before servers, and of equals the one that begins as what was typed does.

    A name is compared as far as the text goes, so that a wrong letter weighs the same in a name that is longer.
    """

    def likeness(known: str) -> tuple[float, bool, float]:
        found = _exact_names()[known]
        compared = (known[: len(typed)], _squash(_id_of(found)))
        begins, whole = (SequenceMatcher(None, text, typed).ratio() for text in compared)
        return (-begins, not found.gpu_id, -whole)

    near = get_close_matches(typed, {known[: len(typed)] for known in _exact_names()}, n=8, cutoff=0.6)
    close = sorted((known for known in _exact_names() if known[: len(typed)] in near), key=likeness)
    return tuple(dict.fromkeys(_id_of(_exact_names()[known]) for known in close))[:_MAX_CLOSE]


def _squash(text: str) -> str:
    """The spelling that is compared: letters and digits, without a leading maker's name."""
    lowered = text.lower()
    for maker in _MAKERS:
        lowered = re.sub(rf"^\W*{maker}\b", "", lowered)
    return re.sub(r"[^a-z0-9]", "", lowered)


def _words(text: str) -> frozenset[str]:
    words = re.split(r"[^a-z0-9]+", text.lower())
    memory_as_number = (re.sub(r"^(\d+)(?:gb|gib|g)$", r"\1", word) for word in words)
    return frozenset(word for word in memory_as_number if word and word not in _IDLE_WORDS)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:57] + "...")


def _id_of(found: Found) -> str:
    return found.gpu_id or found.node_id


@lru_cache(maxsize=1)
def _exact_names() -> dict[str, Found]:
    names: dict[str, Found] = {}
    for node in node_names():
        for name in node.names:
            names.setdefault(_squash(name), Found(node_id=node.id))
        if node.id.endswith(_TRAY_SUFFIX):
            rack = load_node(node.id)
            trays = rack.scale_up_domain_gpus // rack.gpus_per_node
            names[_squash(node.id.removesuffix(_TRAY_SUFFIX))] = Found(node_id=node.id, num_nodes=trays)
    for entry in gpu_entries():
        for name in (entry.gpu.id, entry.gpu.name, *entry.aliases):
            names[_squash(name)] = Found(gpu_id=entry.gpu.id)
    return names


@lru_cache(maxsize=1)
def _node_words() -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((node.id, _words(node.id)) for node in node_names())


def _nodes_with(words: frozenset[str]) -> tuple[str, ...]:
    """Ids that have all the words; at least one of the words must be a name, such as dgx or p5."""
    names_a_server = any(re.match(r"[a-z]", word) and word not in _WORDS_OF_MANY_SERVERS for word in words)
    fitting = tuple(node_id for node_id, node_words in _node_words() if words <= node_words)
    return fitting if names_a_server else ()


def _gpu_words(entry: GpuEntry) -> frozenset[str]:
    form_factor = entry.gpu.form_factor
    family_form = re.sub(r"\d+$", "", form_factor)
    return _words(f"{entry.gpu.id} {entry.family} {form_factor} {family_form} {entry.gpu.memory_type}") | {
        entry.marketing_gb
    }


def _gpus_with(words: frozenset[str]) -> tuple[GpuEntry, ...]:
    """Entries that have all the words; at least one of the words must name a model, not just a memory size."""
    fitting = tuple(entry for entry in gpu_entries() if words <= _gpu_words(entry))
    names_a_model = any(re.search(r"\d", word) and word not in _memory_sizes() for word in words)
    return fitting if names_a_model else ()


@lru_cache(maxsize=1)
def _memory_sizes() -> frozenset[str]:
    return frozenset(entry.marketing_gb for entry in gpu_entries())


def _ambiguous_gpu(name: str, entries: tuple[GpuEntry, ...], prefix: str) -> ClusterError:
    best = max(entries, key=_commonness)
    listed = "; ".join(_difference(entry.gpu) for entry in entries)
    return ClusterError(
        f"{_shown(name)} can be any of {len(entries)} parts: {listed}",
        code="cluster-ambiguous-gpu",
        fix=f"use {prefix}{best.gpu.id}",
    )


def _commonness(entry: GpuEntry) -> tuple[bool, float, float, int]:
    """Sorts by what people mostly mean: a datacentre module, first of its family, the fastest, the largest."""
    gpu = entry.gpu
    is_module = gpu.form_factor.startswith(("SXM", "OAM"))
    peak_flop_per_s = gpu.peak_flop_per_s("bf16") or gpu.peak_flop_per_s("fp16")
    return is_module, -_rank_in_family(entry), peak_flop_per_s * gpu.memory_bandwidth_bytes_per_s, gpu.memory_bytes


def _rank_in_family(entry: GpuEntry) -> float:
    """0 for the first part listed of a named family, so that mi300 suggests mi300x."""
    siblings = [other.gpu.id for other in gpu_entries() if other.family == entry.family]
    return siblings.index(entry.gpu.id) if entry.family else 0


def _difference(gpu: Gpu) -> str:
    form_factor = f", {gpu.form_factor}" if gpu.form_factor else ""
    memory_gb_per_s = gpu.memory_bandwidth_bytes_per_s / GB_PER_S
    return f"{gpu.id} ({format_gib(gpu.memory_bytes)}, {memory_gb_per_s:.0f} GB/s{form_factor})"


def _ambiguous_node(name: str, node_ids: Iterable[str], prefix: str) -> ClusterError:
    nodes = [load_node(node_id) for node_id in node_ids]
    listed = "; ".join(f"{node.id} ({node.gpus_per_node} x {node.gpu.id})" for node in nodes[:_MAX_LISTED])
    more = f"; and {len(nodes) - _MAX_LISTED} more" if len(nodes) > _MAX_LISTED else ""
    return ClusterError(
        f"{_shown(name)} can be any of {len(nodes)} servers: {listed}{more}",
        code="cluster-ambiguous-node",
        fix=f"use {prefix}{nodes[0].id}",
    )


def gpu_id_of(name: str) -> str:
    """The id of the one accelerator with this name.

    Raises:
        ClusterError: ``cluster-unknown`` or ``cluster-ambiguous-gpu``.
    """
    found = find_part(name)
    if found is None:
        raise unknown_name(name)
    if found.node_id:
        raise ClusterError(
            f"{_shown(name)} is a server, not a GPU",
            code="cluster-unknown",
            fix=f'use "node": "{found.node_id}" instead of "gpu"',
        )
    return found.gpu_id


def driver_gpu_id(device: str) -> str:
    """The id of a part by a driver's name, which leaves out whether an H200 is SXM; empty when none has it."""
    for spelling in (device, f"{device} SXM") if device else ():
        try:
            return gpu_id_of(spelling)
        except ClusterError:
            continue
    return ""


def node_id_of(name: str) -> Found:
    """The one server (or rack) with this name.

    Raises:
        ClusterError: ``cluster-unknown`` or ``cluster-ambiguous-node``; a GPU's name is told apart.
    """
    found = find_part(name)
    if found is None:
        raise unknown_name(name)
    if found.gpu_id:
        raise ClusterError(
            f"{_shown(name)} is a GPU, not a server",
            code="cluster-unknown",
            fix=f'use "gpu": "{found.gpu_id}" instead of "node"',
        )
    return found
