"""Makes samples of what the user names: paths or ``synthetic``, a tokenizer, a length."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardwise.errors import DataError
from shardwise.train.data.documents import unread_files
from shardwise.train.data.encoding import Encoder
from shardwise.train.data.examples import Text, example_of, unread_keys
from shardwise.train.data.indexed_tokens import read_indexed_tokens
from shardwise.train.data.mixture import MAX_PERIOD, HeldOut, Joined, Mixed, Remaining
from shardwise.train.data.prepare import Progress, cache_folder, require_cache, tokenise_once, tokenised_summary
from shardwise.train.data.samples import (
    FittedDocuments,
    PackedStream,
    Pieces,
    Samples,
    SyntheticTokens,
    pieces_of,
    require_known,
    too_few_tokens,
    too_short_documents,
)
from shardwise.train.data.sources import Source, parse_source, read_by_file, read_source
from shardwise.train.data.stream import TokenStream
from shardwise.train.data.tokenizer import Tokenizer, open_tokenizer
from shardwise.train.job import DataSpec, Packing

__all__ = [
    "holds_tokens",
    "open_samples",
    "prepare_samples",
    "require_readable",
    "sources_of",
    "suited_packing",
    "tokenizer_of",
]

NUM_OPENED = 16
"""Files whose first document is read before a run; all are read when they are tokenised."""
MAX_LOOKED_AT = 1 << 24
"""Tokens among which unknown ones are looked for before a run; ranks look at all that they read."""
MAX_NAMED = 6
"""Names in one sentence."""
Part = Literal["training", "held out"]


def sources_of(data: DataSpec) -> tuple[Source, ...]:
    """The sources of the data in their order.

    Raises:
        DataError: some have a weight and others have none, or one weighs too little to have a sample.
    """
    sources = tuple(parse_source(text) for text in (data.source, *data.more_sources))
    weights = [source.weight_ratio for source in sources if source.weight_ratio is not None]
    is_too_small = bool(weights) and MAX_PERIOD * min(weights) < 0.999 * max(sum(weights), 1e-9)
    if len(weights) not in (0, len(sources)) or is_too_small:
        raise DataError(
            f"{len(weights)} of {len(sources)} sources have a weight, or one has less than 1 in {MAX_PERIOD:,}",
            code="data-weights",
            fix="give each source a weight that counts, as in --data A:0.7 --data B:0.3, or none of them",
        )
    return sources


def open_samples(
    data: DataSpec,
    *,
    seq_len: int,
    vocab_size: int,
    cache: Path | None = None,
    progress: Progress | None = None,
    part: Part = "training",
) -> Samples:
    """The samples of the data; text is tokenised the first time and mapped from the cache after that."""
    if data.is_synthetic:
        return SyntheticTokens(seq_len=seq_len, vocab_size=vocab_size, seed=data.seed)
    sources = sources_of(data)
    streams = [_open_stream(data, source, cache, progress) for source in sources]
    parts = [_part_of(_samples(data, stream, seq_len=seq_len, vocab_size=vocab_size), data, part) for stream in streams]
    weights = [source.weight_ratio for source in sources if source.weight_ratio is not None]
    if len(parts) == 1:
        return parts[0]
    return Mixed(parts, weights) if weights and part == "training" else Joined(parts=tuple(parts))


def _samples(data: DataSpec, stream: TokenStream, *, seq_len: int, vocab_size: int) -> Samples:
    if data.packing == "stream":
        return PackedStream(
            stream=stream, seq_len=seq_len, vocab_size=vocab_size, crosses_documents=data.crosses_documents
        )
    return FittedDocuments(
        stream=stream,
        seq_len=seq_len,
        vocab_size=vocab_size,
        overlong=data.overlong,
        is_packed=data.packing == "documents",
    )


def _part_of(samples: Samples, data: DataSpec, part: Part) -> Samples:
    if not data.held_out_fraction:
        return samples
    period = max(2, round(1 / data.held_out_fraction))
    held_out = HeldOut(samples=samples, num_in_period=period)
    if not held_out.num_samples:
        raise DataError(
            f"a share of {data.held_out_fraction:g} of {samples.num_samples:,} samples is less than one",
            code="data-held-out",
            fix="hold a larger share out, or give more data",
        )
    return held_out if part == "held out" else Remaining(samples=samples, num_in_period=period)


def suited_packing(data: DataSpec) -> Packing:
    """The packing where the user names none: ``stream`` for texts and tokens, ``documents`` for rows with prompts."""
    try:
        source = sources_of(data)[0]
        if holds_tokens(source):
            return "stream"
        row = next(read_source(source, field=data.field), None)
        is_text = row is None or isinstance(example_of(row, field=data.field), Text)
    except DataError:  # said where the data are looked at
        return "stream"
    return "stream" if is_text else "documents"


def prepare_samples(data: DataSpec, *, seq_len: int, vocab_size: int) -> tuple[str, ...]:
    """Tokenise text that was not yet, and return when the tokens can be trained on.

    Returns:
        Sentences for the user on each source: how many tokens are learned, and what no sample holds.

    Raises:
        DataError: the data are not what they should be, fill no sample, or hold tokens that the model does not know.
    """
    if data.is_synthetic:
        return ()
    said = []
    for source in sources_of(data):
        stream = _open_stream(data, source)
        pieces = _require_trainable(data, stream, seq_len=seq_len, vocab_size=vocab_size)
        said += [f"{source.path}: {sentence}" for sentence in _said(data, source, stream, pieces, seq_len=seq_len)]
    return tuple(said)


def _said(data: DataSpec, source: Source, stream: TokenStream, pieces: Pieces | None, *, seq_len: int) -> Iterator[str]:
    summary = {} if holds_tokens(source) else _summary(data, source)
    if stream.has_targets:
        by = summary.get("targets_by", ())
        yield (
            f"{stream.num_targets:,} of {stream.num_tokens:,} tokens in {stream.num_documents:,} rows are learned"
            + (f", the assistant's by {' and '.join(by)}" if by else "")
        )
    if pieces is not None and pieces.num_overlong:
        lost = f"; no sample holds {pieces.num_left_out:,} tokens of them" if pieces.num_left_out else ""
        done = {"cut": "cut into pieces", "truncate": "truncated", "drop": "left out"}[data.overlong]
        yield (
            f"{pieces.num_overlong:,} of {stream.num_documents:,} rows have more than {seq_len + 1:,} tokens and are "
            f"{done} (--overlong {data.overlong}){lost}"
        )
    if pieces is not None and pieces.num_unlearned:
        yield f"{pieces.num_unlearned:,} rows or pieces of rows are left out, as no token of theirs is learned"
    if not holds_tokens(source):
        yield from _said_of_text(data, source, summary)


def _said_of_text(data: DataSpec, source: Source, summary: dict[str, Any]) -> Iterator[str]:
    """Sentences on the files and rows that are not read, and on tokens that are learned unexpectedly."""
    if data.tokenizer is None:
        yield "every byte is a token, as no tokenizer is named (--tokenizer)"
    elif tokenizer_of(data).end_token is None:
        yield "no end closes texts and completions, as the tokenizer's files name none (eos_token)"
    if empty := summary.get("num_empty_answers"):
        yield f"{empty:,} rows have an empty answer, of which only the end is learned"
    if unclosed := summary.get("num_open_answers"):
        yield f"in {unclosed:,} conversations no special token that the template writes after an answer is learned"
    if not source.split and (names := unread_files(source.path)):
        yield f"{_some(names)} in this folder {'is' if len(names) == 1 else 'are'} not read"
    row = next(read_source(source, field=data.field))
    if names := unread_keys(row, example_of(row, field=data.field), field=data.field):
        yield f"rows also hold {_some(names)}, which {'is' if len(names) == 1 else 'are'} not read (by the first)"


def _some(names: tuple[str, ...]) -> str:
    """Names with commas between them; of many the first."""
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _summary(data: DataSpec, source: Source) -> dict[str, Any]:
    """The cache's summary of a source's tokens; empty where it has none."""
    return tokenised_summary(source, tokenizer=tokenizer_of(data), field=data.field, cache=cache_folder()) or {}


def require_readable(data: DataSpec, *, seq_len: int, vocab_size: int) -> None:
    """Return when the data and their tokenizer are there, begin as they should, and fill a sample with known tokens.

    Nothing is written. Of text only as much is tokenised as fills a sample.

    Raises:
        DataError: a file is missing, may not be read, is something else, or holds too little or unknown tokens.
    """
    if data.is_synthetic:
        return
    for source in sources_of(data):
        if not holds_tokens(source):
            _require_readable_text(data, source, seq_len=seq_len, vocab_size=vocab_size)
            continue
        if data.tokenizer is not None and len(sources_of(data)) == 1:
            raise DataError(
                f"a tokenizer does nothing: {source.text} holds tokens already",
                code="data-tokenizer",
                fix="leave out --tokenizer, or give the text that it shall turn into tokens",
            )
        _require_trainable(data, _open_stream(data, source), seq_len=seq_len, vocab_size=vocab_size)


def _require_readable_text(data: DataSpec, source: Source, *, seq_len: int, vocab_size: int) -> None:
    """Read rows until they fill a sample, and the first row of some more files."""
    tokenizer, found, cache = tokenizer_of(data), _Found(), cache_folder()
    if tokenised_summary(source, tokenizer=tokenizer, field=data.field, cache=cache) is None:
        require_cache(cache)
    encoder = Encoder(tokenizer)
    for number, rows in enumerate(read_by_file(source, field=data.field)):
        is_filled = found.fills_sample(data, seq_len=seq_len)
        if is_filled and number >= NUM_OPENED:
            return
        for row in rows:
            if is_filled:
                break
            ((tokens, _),) = encoder.encode([example_of(row, field=data.field)])
            if len(tokens):
                require_known(tokens, vocab_size=vocab_size)
            found = _Found(num_tokens=found.num_tokens + len(tokens), longest=max(found.longest, len(tokens)))
            is_filled = found.fills_sample(data, seq_len=seq_len)
    if not found.num_tokens:
        raise DataError(f"{source.path} holds no text", code="data-too-short", fix="give files with something in them")
    found.require_sample(data, seq_len=seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Number of tokens of some data, and the length of its longest document."""

    num_tokens: int = 0
    longest: int = 0
    """Tokens of the longest document."""

    def fills_sample(self, data: DataSpec, *, seq_len: int) -> bool:
        """Whether one sample can be made of it."""
        return self.num_tokens > seq_len if data.packing == "stream" else self.longest > 1

    def require_sample(self, data: DataSpec, *, seq_len: int) -> None:
        """Return when it is enough for a sample."""
        if not self.fills_sample(data, seq_len=seq_len):
            is_stream = data.packing == "stream"
            raise too_few_tokens(self.num_tokens, seq_len=seq_len) if is_stream else too_short_documents()


def _require_trainable(data: DataSpec, stream: TokenStream, *, seq_len: int, vocab_size: int) -> Pieces | None:
    """Return the pieces of documents that samples are made of, or ``None`` for a stream, which is cut anywhere.

    Raises:
        DataError: no sample can be made, or there are tokens that the model does not know.
    """
    is_stream = data.packing == "stream"
    longest = 0 if is_stream else int(stream.document_lengths().max(initial=0))
    _Found(num_tokens=stream.num_tokens, longest=longest).require_sample(data, seq_len=seq_len)
    pieces = None if is_stream else pieces_of(stream, seq_len=seq_len, overlong=data.overlong)
    if pieces is not None and not len(pieces.starts):
        raise DataError(
            f"no row is left of {stream.num_documents:,}: all are longer than {seq_len:,} tokens, or nothing of what "
            "is left of them is learned",
            code="data-too-short",
            fix="set --seq-len higher, or --overlong cut",
        )
    for tokens in stream.sampled(MAX_LOOKED_AT):
        require_known(tokens, vocab_size=vocab_size)
    return pieces


def _open_stream(
    data: DataSpec, source: Source, cache: Path | None = None, progress: Progress | None = None
) -> TokenStream:
    files = [read_indexed_tokens(stem) for stem in _token_pairs(source)]
    if not files:
        folder, tokenizer = cache or cache_folder(), tokenizer_of(data)
        files = [tokenise_once(source, tokenizer=tokenizer, field=data.field, cache=folder, progress=progress)]
    return TokenStream(files, learns_all=data.loss_on == "all")


def tokenizer_of(data: DataSpec) -> Tokenizer:
    """The tokenizer of the data."""
    return open_tokenizer(Path(data.tokenizer) if data.tokenizer else None)


def holds_tokens(source: Source) -> bool:
    """Whether a source holds tokens already, which no tokenizer has to make."""
    return bool(_token_pairs(source))


def _token_pairs(source: Source) -> list[Path]:
    """Files of tokens, without their endings: the one named, or all below a folder; a split of a data set has none."""
    path = source.path
    if source.split:
        return []
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
