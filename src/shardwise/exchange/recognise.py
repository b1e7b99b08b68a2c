"""A file belongs to the tool that knows most of its keys; at a tie, to the tool with fewer names."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shardwise.exchange.facts import Document, Fact, names_a_file
from shardwise.exchange.names import Tool, View
from shardwise.exchange.tools.table import TOOLS

LAUNCH_PROGRAM = "launch"
ACCELERATE_OPTION = "accelerate."
PLAN_KEYS = frozenset(("schema", "plan", "recipe", "layout", "cluster"))
"""A document with one of these is a plan or a recipe of ours, or was meant as one."""
OPTION_SECTIONS = (
    ("fsdp_", "fsdp_config."),
    ("parallelism_config_", "parallelism_config."),
    ("zero_", "deepspeed_config.zero_"),
)
"""``accelerate launch --fsdp_version 2`` is ``fsdp_config.fsdp_version`` of the YAML."""
FILES_ALONE = ("peft", "meta", "kubernetes", "skypilot", "gpt-neox", "nanotron")
"""Tools that take no arguments on a line, where ``-r`` is another program's."""
OWN_PROGRAMS = ("llamafactory",)
"""Tools whose arguments are so many that any script has some: a line is theirs only where it names their program."""
LEAST_KNOWN = 3
"""One option in so many has to be the tool's own: every program has some option that a training tool has as well."""
LEAST_READ = 8
"""One command in so many of a file has to be of a tool: pages about training, whose words are read as commands, have
one in nine at most, and scripts that start a run have every second one."""
OPTION_KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}


def views_of(documents: Sequence[Document]) -> tuple[View, ...]:
    """Each document as the tool reads it that it was recognised for; documents of nobody have no view.

    A file in which nearly nothing is of a tool is nobody's as a whole.
    """
    found = [(tool, part) for document in documents for part in _parts(document) if (tool := tool_of(part)) is not None]
    written, read = (Counter(one.file for one in some) for some in (documents, [part for _, part in found]))
    found = [one for one in found if read[one[1].file] * LEAST_READ >= written[one[1].file]]
    names = [tool.name for tool, _ in found]
    return tuple(
        View(
            tool=tool,
            document=document,
            by_key={fact.key: fact for fact in document.facts},
            is_line=bool(document.program),
            others=frozenset(names[:index] + names[index + 1 :]),
        )
        for index, (tool, document) in enumerate(found)
    )


def tool_of(document: Document) -> Tool | None:
    """The tool whose document this is; ``None`` where no key is anybody's."""
    if document.program == LAUNCH_PROGRAM:
        return TOOLS[LAUNCH_PROGRAM]
    if not document.program and document.keys() & PLAN_KEYS:
        return None
    named = [tool for tool in TOOLS.values() if any(part in document.program for part in tool.programs)]
    nobody = (LAUNCH_PROGRAM, *(FILES_ALONE if document.program else ()))
    unnamed = [TOOLS[name] for name in OWN_PROGRAMS if document.program and TOOLS[name] not in named]
    candidates = [tool for tool in TOOLS.values() if tool.name not in nobody and tool not in unnamed]
    scores = {tool.name: _score(tool, document, is_named=tool in named) for tool in candidates}
    best = max(scores, key=lambda name: scores[name])
    num_options = sum(not names_a_file(fact) for fact in document.facts)
    is_foreign = bool(document.program) and scores[best][1] * LEAST_KNOWN < num_options
    return TOOLS[best] if scores[best][0] and not is_foreign else None


def _score(tool: Tool, document: Document, *, is_named: bool) -> tuple[int, int]:
    """Keys with a meaning, one more where the program is the tool's own; and keys that are at least known."""
    facts = [fact for fact in document.facts if not names_a_file(fact)]
    meant = sum(tool.name_of(fact.key) is not None for fact in facts)
    return (10 * meant + 5 * is_named, sum(tool.knows(fact.key) for fact in facts))


def _parts(document: Document) -> tuple[Document, ...]:
    """Options of ``accelerate launch`` are a document of their own: Accelerate's YAML, one key an option."""
    if document.program != LAUNCH_PROGRAM:
        return (document,)
    options = [_as_in_file(fact) for fact in document.facts if fact.key.startswith(ACCELERATE_OPTION)]
    accelerate = TOOLS["accelerate"]
    known = tuple(fact for fact in options if accelerate.name_of(fact.key) is not None)
    return (document, Document(file=document.file, facts=known, program="accelerate launch")) if known else (document,)


def _as_in_file(fact: Fact) -> Fact:
    key = fact.key.removeprefix(ACCELERATE_OPTION)
    if key in OPTION_KINDS:
        return replace(fact, key="distributed_type", value=OPTION_KINDS[key])
    for prefix, section in OPTION_SECTIONS:
        if key.startswith(prefix):
            return replace(fact, key=section + key.removeprefix(prefix))
    return replace(fact, key=key)
