"""The options of ``train`` that say what is learned: the data, how they fill samples, and which tokens count."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from shardwise.ask.idle_options import IdleOption, IsIdle
from shardwise.plan import Plan
from shardwise.train.job import LossOn, Overlong, Packing

if TYPE_CHECKING:
    from shardwise.train.job import DataSpec

__all__ = ["DATA_ROWS", "FIELD_HELP", "add_data_options", "data_spec", "has_made_up_data"]

SYNTHETIC = "synthetic"
TEXT_FIELD = "text"
_DATA_HELP = (
    "text, JSON Lines or Parquet, a folder of them or of `datasets` (@SPLIT), a name in the Hub's cache, or tokens.bin "
    "with tokens.idx; with :WEIGHT, several times (default: made-up tokens)"
)
FIELD_HELP = "key or column of the text or messages, or those of question and answer: question,answer (default: text)"
_TOKENIZER_HELP = "a tokenizer.json or a model's folder (default: that of --weights, or bytes)"
_PACKING_HELP = (
    "cut all documents joined, keep each whole and fill samples, or one row a sample (default: documents for rows with "
    "prompts, stream for others)"
)
_OVERLONG_HELP = "rows longer than a sample, where each is kept whole (default: truncate rows with prompts, cut others)"
_MASK_HELP = "documents do not see each other, and none's first token is predicted from the one before"
_LOSS_HELP = "learn no prompt and no turn of the user, or all tokens (default: completions)"


def _given(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The sources; none where tokens are made up. ``synthetic`` takes back what was given before it."""
    given: list[str] = []
    for text in arguments.data or ():
        given = [] if text == SYNTHETIC and not Path(text).exists() else [*given, text]
    return tuple(given)


def has_made_up_data(arguments: argparse.Namespace, _: Plan) -> bool:
    """Whether the run makes its tokens up: no source is given, or ``synthetic`` took all back."""
    return not _given(arguments)


def _sees_across_documents(arguments: argparse.Namespace, _: Plan) -> bool:
    return not _given(arguments) or not data_spec(arguments).masks_documents


def _keeps_none_whole(arguments: argparse.Namespace, _: Plan) -> bool:
    return not _given(arguments) or data_spec(arguments).packing == "stream"


def _of_data(option: str, *, dest: str = "", default: object = None, is_idle: IsIdle = has_made_up_data) -> IdleOption:
    return IdleOption(
        option=option,
        dest=dest,
        default=default,
        is_idle=is_idle,
        beside="without --data",
        missing="--data PATH",
    )


DATA_ROWS = (
    _of_data("--tokenizer"),
    _of_data("--data-field", default=TEXT_FIELD),
    _of_data("--packing"),
    _of_data("--mask-documents", dest="crosses_documents", default=True),
    _of_data("--loss-on", default="completions"),
    _of_data("--show-batch", dest="shows_batch", default=False),
    IdleOption(
        option="--overlong",
        is_idle=_keeps_none_whole,
        beside="where rows are joined and cut anywhere",
        missing="--packing documents",
    ),
    IdleOption(
        option="--mean-document-len",
        is_idle=_sees_across_documents,
        beside="without documents that are kept apart",
        missing="--data PATH --mask-documents",
    ),
)
"""Options that nothing reads without data, or with data of another kind."""


def add_data_options(group: "argparse._ArgumentGroup") -> None:
    """Add the options that say which data are read, and which of their tokens are learned."""
    group.add_argument("--data", action="append", metavar="SOURCE", help=_DATA_HELP)
    group.add_argument("--tokenizer", metavar="PATH", help=_TOKENIZER_HELP)
    group.add_argument("--data-field", default=TEXT_FIELD, metavar="NAME", help=FIELD_HELP)
    group.add_argument("--loss-on", choices=get_args(LossOn), default="completions", help=_LOSS_HELP)
    group.add_argument("--packing", choices=get_args(Packing), help=_PACKING_HELP)
    group.add_argument("--mask-documents", action="store_false", dest="crosses_documents", help=_MASK_HELP)
    group.add_argument("--overlong", choices=get_args(Overlong), help=_OVERLONG_HELP)
    group.add_argument(
        "--no-shuffle", action="store_false", dest="is_shuffled", help="samples in the order of the data"
    )
    group.add_argument(
        "--show-batch",
        action="store_true",
        dest="shows_batch",
        help="decode the first micro-batch, with what of it is learned; start nothing",
    )


def _tokenizer(arguments: argparse.Namespace, sources: list[str]) -> str | None:
    """The tokenizer that was named, or that in the folder of --weights where text is read; nothing for bytes."""
    from shardwise.train.data.request import holds_tokens
    from shardwise.train.data.sources import parse_source

    named, weights = arguments.tokenizer, arguments.weights
    if named is None and weights is not None and Path(weights, "tokenizer.json").is_file():
        named = None if all(holds_tokens(parse_source(text)) for text in sources) else weights
    return str(Path(named).resolve()) if named is not None else None


def data_spec(arguments: argparse.Namespace) -> "DataSpec":
    """The data of a job; paths are absolute, since workers may run in another folder."""
    from dataclasses import replace

    from shardwise.train.data import suited_packing
    from shardwise.train.data.sources import parse_source
    from shardwise.train.job import DataSpec

    sources = [parse_source(text).text for text in _given(arguments)]
    spec = DataSpec(
        source=sources[0] if sources else SYNTHETIC,
        more_sources=tuple(sources[1:]),
        tokenizer=_tokenizer(arguments, sources),
        field=arguments.data_field,
        crosses_documents=arguments.crosses_documents,
        loss_on=arguments.loss_on,
        held_out_fraction=arguments.validation_fraction or 0.0,
        seed=arguments.seed,
        is_shuffled=arguments.is_shuffled,
    )
    if not sources:
        return spec
    suited = suited_packing(spec)
    packing = arguments.packing or suited
    overlong: Overlong = arguments.overlong or ("cut" if suited == "stream" else "truncate")
    return replace(spec, packing=packing, overlong="cut" if packing == "stream" else overlong)
