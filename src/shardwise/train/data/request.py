"""From what the user names to samples: a path or ``synthetic``, a tokenizer, a length."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardwise.errors import DataError
from shardwise.train.data.documents import find_documents, read_documents
from shardwise.train.data.indexed_tokens import IndexedTokens, read_indexed_tokens
from shardwise.train.data.prepare import Progress, cache_folder, tokenise_once
from shardwise.train.data.samples import FittedDocuments, PackedStream, Samples, SyntheticTokens
from shardwise.train.data.stream import TokenStream
from shardwise.train.data.tokenizer import open_tokenizer

__all__ = ["SYNTHETIC", "DataRequest", "open_samples", "require_readable"]

SYNTHETIC = "synthetic"
NUM_OPENED = 16
"""Files whose first document is read before a run; all are read when they are tokenised."""

Packing = Literal["stream", "documents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """What to train on."""

    source: str = SYNTHETIC
    """``synthetic``, a file or a folder of text, JSON Lines or Parquet, or of ``.bin``/``.idx`` pairs."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` or the folder of a model; ``None`` trains on bytes."""
    field: str = "text"
    """Key or column that holds the text."""
    packing: Packing = "stream"
    """``stream`` cuts all documents, joined, every seq_len tokens; ``documents`` keeps each whole and pads."""
    crosses_documents: bool = False
    """Let attention, positions and labels run over the ends of documents."""
    seed: int = 0
    is_shuffled: bool = True


def open_samples(
    request: DataRequest, *, seq_len: int, vocab_size: int, cache: Path | None = None, progress: Progress | None = None
) -> Samples:
    """The samples of a request; text is tokenised the first time and mapped from the cache after that."""
    if request.source == SYNTHETIC:
        return SyntheticTokens(seq_len=seq_len, vocab_size=vocab_size, seed=request.seed)
    path = Path(request.source)
    pairs = _token_pairs(path)
    files = [read_indexed_tokens(stem) for stem in pairs] if pairs else [_tokenised(request, path, cache, progress)]
    stream = TokenStream(files)
    if request.packing == "documents":
        return FittedDocuments(stream=stream, seq_len=seq_len, vocab_size=vocab_size, pad_token=0)
    return PackedStream(
        stream=stream, seq_len=seq_len, vocab_size=vocab_size, crosses_documents=request.crosses_documents
    )


def require_readable(request: DataRequest) -> None:
    """Return when the data and their tokenizer are there and begin as they should; nothing is tokenised.

    Raises:
        DataError: a file is missing, may not be read, or is something else.
    """
    if request.source == SYNTHETIC:
        return
    path = Path(request.source)
    pairs = _token_pairs(path)
    for stem in pairs:
        read_indexed_tokens(stem)
    if pairs:
        return
    open_tokenizer(Path(request.tokenizer) if request.tokenizer else None)
    for file in find_documents(path)[:NUM_OPENED]:
        next(read_documents(file, field=request.field), None)


def _tokenised(request: DataRequest, path: Path, cache: Path | None, progress: Progress | None) -> IndexedTokens:
    tokenizer = open_tokenizer(Path(request.tokenizer) if request.tokenizer else None)
    return tokenise_once(
        path, tokenizer=tokenizer, field=request.field, cache=cache or cache_folder(), progress=progress
    )


def _token_pairs(path: Path) -> list[Path]:
    """Files of tokens, without their endings: the one named, or all below a folder."""
    if path.suffix in (".bin", ".idx"):
        return [path.with_suffix("")]
    if path.with_name(f"{path.name}.idx").is_file():
        return [path]
    if not path.is_dir():
        return []
    found = sorted(file.with_suffix("") for file in path.rglob("*.idx"))
    if not found and (loose := next(path.rglob("*.bin"), None)) is not None:
        raise DataError(
            f"{loose} has no .idx beside it, so where its documents begin and how wide its tokens are is unknown",
            code="data-tokens",
            fix="copy the .idx as well, or tokenise the text again",
        )
    return found
