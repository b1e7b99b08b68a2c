"""The ``config.json`` of a repository of the Hugging Face Hub: from the local cache, or else from the Hub itself.

Only the config is read, never weights or code. The Hub is asked where huggingface_hub is installed, with its endpoint
and its login, and not where ``HF_HUB_OFFLINE`` is set.
"""

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from shardwise.units import MIB

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
TIMEOUT_S = 3.0
"""Seconds that connecting and reading may take: a question about a plan is not worth waiting longer for a config."""
LARGEST_ANSWER_BYTES = 8 * MIB + 1
"""One byte more than the largest config that is read."""
OFFLINE_VALUES = ("1", "ON", "YES", "TRUE")
"""Values with which huggingface_hub takes ``HF_HUB_OFFLINE`` for set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """The text of a config, and the sentence that says where it comes from."""

    text: str
    origin: str


def is_repository(text: str) -> bool:
    """Whether a text has the form of a repository of the Hub.

    >>> is_repository("unsloth/Qwen3-8B"), is_repository("models/a/config.json")
    (True, False)
    """
    return bool(REPOSITORY.fullmatch(text)) and not text.endswith((".json", ".yaml", ".toml"))


def cached_config(repository: str) -> HubConfig | None:
    """The config of a repository in the local cache; ``None`` where it is not there."""
    file = _cached_file(repository)
    if file is None:
        return None
    origin = f"the config of {repository} was read from the local Hub cache (revision {file.parent.name[:12]})"
    return HubConfig(text=file.read_text(encoding="utf-8", errors="replace"), origin=origin)


def hub_config(repository: str) -> HubConfig | str:
    """The config of a repository as the Hub has it now, or why there is none, as the end of a sentence."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in OFFLINE_VALUES:
        return "the local Hub cache has no such repository, and HF_HUB_OFFLINE is set"
    if find_spec("huggingface_hub") is None:
        return "the local Hub cache has no such repository, and huggingface_hub is not installed to ask the Hub"
    return _downloaded(repository)


def _cached_file(repository: str) -> Path | None:
    """The config of the newest revision that the cache holds; ``refs/main`` first."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    folder = cache / f"models--{repository.replace('/', '--')}"
    try:
        main = folder / "refs" / "main"
        revision = main.read_text(encoding="ascii").strip() if main.is_file() else ""
        files = [folder / "snapshots" / revision / "config.json"] if revision else []
        files += sorted(folder.glob("snapshots/*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        return next((file for file in files if file.is_file()), None)
    except (OSError, ValueError):
        return None


def _downloaded(repository: str) -> HubConfig | str:
    """The config that the Hub sends now, or why it sends none, as the end of a sentence."""
    from urllib.request import Request, urlopen  # noqa: PLC0415 - slow to import, and few names need it

    from huggingface_hub import hf_hub_url  # noqa: PLC0415 - an optional library, and only names of the Hub need it
    from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

    request = Request(hf_hub_url(repository, "config.json"))
    for name, value in build_hf_headers().items():
        request.add_unredirected_header(name, value)  # a login stays with the host it belongs to
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            text = answer.read(LARGEST_ANSWER_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split())[:80]
        return f"the local Hub cache has no such repository, and the Hub gave no config.json ({reason})"
    return HubConfig(text=text, origin=f"the config of {repository} was read from the Hub, revision main")
