"""Read a cluster from one line of text, a file or a mapping."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shardwise.catalog.hardware.build import build_cluster
from shardwise.catalog.hardware.request import MAX_GPUS, ClusterRequest, read_request
from shardwise.catalog.hardware.text import ParsedText, parse_cluster_text
from shardwise.cluster import Cluster
from shardwise.errors import ClusterError

MAX_FILE_BYTES = 1_000_000
_FILE_SUFFIXES = (".toml", ".json")


def read_cluster(source: str | Path | Mapping[str, object]) -> Cluster:
    """The cluster that ``source`` describes.

    Args:
        source: ``64xh100-sxm``, ``8 x dgx-h100``, ``p5.48xlarge``, ``h100-sxm`` (one GPU), the path of a ``.toml`` or
            ``.json`` file, or a mapping such as ``{"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1}``.

    Raises:
        ClusterError: with a code of ``docs/errors.md`` and one thing to type next.

    >>> cluster = read_cluster("64xh100-sxm")
    >>> cluster.num_nodes, cluster.node.id
    (8, 'dgx-h100')
    """
    if isinstance(source, Mapping):
        return build_cluster(read_request(source))
    if isinstance(source, Path):
        return build_cluster(read_request(_read_file(source)))
    if not isinstance(source, str):
        raise ClusterError(
            f"a cluster is a text, a path or a mapping, not a {type(source).__name__}",
            code="cluster-text",
            fix="write it like 64xh100-sxm",
        )
    text = source.strip()
    if text.startswith("{"):
        return build_cluster(read_request(_parse_json(text, where="the cluster text")))
    if text.lower().endswith(_FILE_SUFFIXES):
        return build_cluster(read_request(_read_file(Path(text))))
    parsed = parse_cluster_text(text)
    cluster, assumed = build_cluster(_request_of(parsed)), parsed.found.assumption
    return replace(cluster, assumptions=(assumed, *cluster.assumptions)) if assumed else cluster


def priced_cluster(cluster: Cluster, usd_per_gpu_hour: float | None) -> Cluster:
    """The cluster, read again at another price in dollars per GPU and hour; as it is for ``None``."""
    if usd_per_gpu_hour is None:
        return cluster
    described = json.loads(cluster.spec_json)
    written = {"node": described} if isinstance(described, str) else described
    return read_cluster({**written, "usd_per_gpu_hour": usd_per_gpu_hour})


def _request_of(parsed: ParsedText) -> ClusterRequest:
    """The request that counts and a name make.

    Raises:
        ClusterError: ``cluster-size`` for counts below 1 or above what a cluster can have.
    """
    found = parsed.found
    name = found.gpu_id or found.node_id
    for count in (parsed.count, parsed.gpus_per_node):
        if count is not None and not 1 <= count <= MAX_GPUS:
            shown = f"{count:,}" if abs(count) < 10**18 else "more than 10**18"
            raise ClusterError(
                f"{shown} x {name} is not a cluster; it has 1 to {MAX_GPUS:,} GPUs",
                code="cluster-size",
                fix=f"use 8x{name}",
            )
    if found.node_id:
        return ClusterRequest(
            node_id=found.node_id, num_nodes=parsed.count * found.num_nodes, gpus_per_node=parsed.gpus_per_node
        )
    if parsed.gpus_per_node is not None:
        return read_request({"gpu": name, "num_nodes": parsed.count, "gpus_per_node": parsed.gpus_per_node})
    return ClusterRequest(gpu_id=name, num_gpus=parsed.count)


def _read_file(path: Path) -> Mapping[str, object]:
    """The table in a cluster file.

    Raises:
        ClusterError: ``cluster-file`` when it cannot be read, is too large, or is not TOML or JSON.
    """
    if path.suffix.lower() not in _FILE_SUFFIXES:
        raise _bad_file(path, f"its name ends in {path.suffix or 'nothing'!r}", "name it cluster.toml")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name cannot be opened"
        raise _bad_file(path, reason, "give the path of an existing .toml file") from error
    if len(content) > MAX_FILE_BYTES:
        raise _bad_file(path, f"it is larger than {MAX_FILE_BYTES:,} bytes", "give a file that describes one cluster")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_file(path, "it is not UTF-8 text", "save it as UTF-8") from error
    return _parse_toml(path, text) if path.suffix.lower() == ".toml" else _parse_json(text, where=str(path))


def _bad_file(path: Path, reason: str, fix: str) -> ClusterError:
    return ClusterError(f"the cluster file {str(path)[:200]} cannot be used: {reason}", code="cluster-file", fix=fix)


def _parse_toml(path: Path, text: str) -> Mapping[str, object]:
    import tomllib  # noqa: PLC0415 - only cluster files need it

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad_file(path, f"it is not TOML: {error}", "correct the line named above") from error


def _parse_json(text: str, *, where: str) -> Mapping[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(
            f"{where} cannot be used: it is not JSON: {error}", code="cluster-file", fix="correct the place named above"
        ) from error
    if isinstance(content, Mapping):
        return content
    raise ClusterError(
        f"{where} holds a {type(content).__name__}, not an object",
        code="cluster-file",
        fix='write {"gpu": "h100-sxm", "num_gpus": 64}',
    )
