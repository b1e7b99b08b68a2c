"""Makes samples of what the user names: a path or ``synthetic``, a tokenizer, a length."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardwise.errors import DataError
from shardwise.train.data.documents import find_documents, read_documents
from shardwise.train.data.indexed_tokens import IndexedTokens, read_indexed_tokens
from shardwise.train.data.prepare import Progress, cache_folder, is_tokenised, require_cache, tokenise_once
from shardwise.train.data.samples import (
    FittedDocuments,
    PackedStream,
    Samples,
    SyntheticTokens,
    require_known,
    too_few_tokens,
    too_short_documents,
)
from shardwise.train.data.stream import TokenStream
from shardwise.train.data.tokenizer import Tokenizer, open_tokenizer

__all__ = ["SYNTHETIC", "DataRequest", "open_samples", "prepare_samples", "require_readable"]

SYNTHETIC = "synthetic"
NUM_OPENED = 16
"""Files whose first document is read before a run; all are read when they are tokenised."""
MAX_LOOKED_AT = 1 << 24
"""Tokens among which unknown ones are looked for before a run; ranks look at all that they read."""

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
    stream = _open_stream(request, cache, progress)
    if request.packing == "documents":
        return FittedDocuments(stream=stream, seq_len=seq_len, vocab_size=vocab_size, pad_token=0)
    return PackedStream(
        stream=stream, seq_len=seq_len, vocab_size=vocab_size, crosses_documents=request.crosses_documents
    )


def prepare_samples(request: DataRequest, *, seq_len: int, vocab_size: int) -> None:
    """Tokenise text that was not yet, and return when the tokens can be trained on.

    Raises:
        DataError: the data are not what they should be, fill no sample, or hold tokens that the model does not know.
    """
    if request.source != SYNTHETIC:
        _require_trainable(request, _open_stream(request), seq_len=seq_len, vocab_size=vocab_size)


def require_readable(request: DataRequest, *, seq_len: int, vocab_size: int) -> None:
    """Return when the data and their tokenizer are there, begin as they should, and fill a sample with known tokens.

    Nothing is written. Of text only as much is tokenised as fills a sample.

    Raises:
        DataError: a file is missing, may not be read, is something else, or holds too little or unknown tokens.
    """
    if request.source == SYNTHETIC:
        return
    if _token_pairs(Path(request.source)):
        if request.tokenizer is not None:
            raise DataError(
                f"a tokenizer does nothing: {request.source} holds tokens already",
                code="data-tokenizer",
                fix="leave out --tokenizer, or give the text that it shall turn into tokens",
            )
        _require_trainable(request, _open_stream(request), seq_len=seq_len, vocab_size=vocab_size)
    else:
        _require_readable_text(request, seq_len=seq_len, vocab_size=vocab_size)


def _require_readable_text(request: DataRequest, *, seq_len: int, vocab_size: int) -> None:
    """Read documents until they fill a sample, and the first document of some more files."""
    tokenizer, found, cache = _tokenizer(request), _Found(), cache_folder()
    if not is_tokenised(Path(request.source), tokenizer=tokenizer, field=request.field, cache=cache):
        require_cache(cache)
    for number, file in enumerate(find_documents(Path(request.source))):
        is_filled = found.fills_sample(request, seq_len=seq_len)
        if is_filled and number >= NUM_OPENED:
            return
        for text in read_documents(file, field=request.field):
            if is_filled:
                break
            (tokens,) = tokenizer.encode([text])
            if len(tokens):
                require_known(tokens, vocab_size=vocab_size)
            found = _Found(num_tokens=found.num_tokens + len(tokens), longest=max(found.longest, len(tokens)))
            is_filled = found.fills_sample(request, seq_len=seq_len)
    if not found.num_tokens:
        raise DataError(
            f"{request.source} holds no text", code="data-too-short", fix="give files with something in them"
        )
    found.require_sample(request, seq_len=seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is known of the tokens of some data."""

    num_tokens: int = 0
    longest: int = 0
    """Tokens of the longest document."""

    def fills_sample(self, request: DataRequest, *, seq_len: int) -> bool:
        """Whether one sample can be made of it."""
        return self.longest > 1 if request.packing == "documents" else self.num_tokens > seq_len

    def require_sample(self, request: DataRequest, *, seq_len: int) -> None:
        """Return when it is enough for a sample."""
        if not self.fills_sample(request, seq_len=seq_len):
            is_stream = request.packing == "stream"
            raise too_few_tokens(self.num_tokens, seq_len=seq_len) if is_stream else too_short_documents()


def _require_trainable(request: DataRequest, stream: TokenStream, *, seq_len: int, vocab_size: int) -> None:
    longest = int(stream.document_lengths().max(initial=0)) if request.packing == "documents" else 0
    _Found(num_tokens=stream.num_tokens, longest=longest).require_sample(request, seq_len=seq_len)
    for tokens in stream.sampled(MAX_LOOKED_AT):
        require_known(tokens, vocab_size=vocab_size)


def _open_stream(request: DataRequest, cache: Path | None = None, progress: Progress | None = None) -> TokenStream:
    path = Path(request.source)
    pairs = _token_pairs(path)
    return TokenStream(
        [read_indexed_tokens(stem) for stem in pairs] if pairs else [_tokenised(request, path, cache, progress)]
    )


def _tokenised(request: DataRequest, path: Path, cache: Path | None, progress: Progress | None) -> IndexedTokens:
    return tokenise_once(
        path, tokenizer=_tokenizer(request), field=request.field, cache=cache or cache_folder(), progress=progress
    )


def _tokenizer(request: DataRequest) -> Tokenizer:
    return open_tokenizer(Path(request.tokenizer) if request.tokenizer else None)


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
