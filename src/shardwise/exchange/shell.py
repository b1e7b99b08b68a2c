"""Shell scripts, batch scripts and command lines: variables worked out, launchers and programs told apart.

Nothing is run. A variable that the script does not set stays as it is written and leaves its key open. What a branch
says that may not run is read, and its place says so.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePath

from shardwise.errors import PlanError
from shardwise.exchange.branches import CASE, CONDITION, LABEL, Branches, after_keyword, truth
from shardwise.exchange.facts import TREE_SUFFIXES, Document, Fact, FactValue, scalar_of
from shardwise.exchange.words import (
    ASSIGNMENT,
    HERE_DOCUMENT,
    MAX_LINE_CHARACTERS,
    MAYBE,
    Maybe,
    as_written,
    command_words,
    commands,
    elements,
    marked,
    statements,
    words_of,
)

MAX_WORDS = 20_000
REFERENCE = re.compile(r"\\?\$(?:\{([A-Za-z_]\w*|\d)(?:\[[@*]\])?(?::?([-=])([^{}]*))?\}|([A-Za-z_]\w*))")
QUOTED_LIST = re.compile(r'"(\$\{\w+\[[@*]\]\})"')
"""A list in quotes stands for its elements, each a word, as without the quotes."""
ALTERNATIVE = re.compile(r"\$\{([A-Za-z_]\w*):?\+((?:[^{}]|\$\{[^{}]*\})*)\}")
"""Words that stand there only where a variable is set."""
ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
PRODUCT = re.compile(r"(\d+)\s*([*/%])\s*(\d+)")
SUM = re.compile(r"(\d+)\s*([+-])\s*(\d+)")
BATCH_LINE = re.compile(r"^#SBATCH\s+--?([\w-]+)[= ]\s*([^#\s]+)")
LAUNCH_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus_per_task", "G": "gpus"}
READ_INTO = re.compile(r"read\b.*?(\w+)\s*<<")
"""The variable that a text is read into."""
WRITTEN_TO = re.compile(r">\s*[\"']?([^\s\"'<>|&;]+)")
"""The file that a command writes."""
BARE_VARIABLE = re.compile(r"([:,\[]\s*)(\$\{?\w+\}?)(?=\s*[,}\]\n])")
"""A variable that nobody sets, where JSON has a number."""
TEST = re.compile(r"\[\[ .*?(?: \]\]|$)")
"""A condition, in which a bar ends no command."""
FROM_ITS_LINE = re.compile(r"\$\{?\d\}?")
"""An argument of the script, which is not there where nobody gives one."""
NEXT_ARGUMENT = re.compile(r"--|-[A-Za-z]|\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")
"""Words that are no value of the option before them: another option, or ``a.b=c``."""
SLURM_VARIABLES = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_GPUS_PER_NODE": "gpus_per_node",
    "SLURM_GPUS_ON_NODE": "gpus_per_node",
    "SLURM_NTASKS_PER_NODE": "ntasks_per_node",
    "SLURM_NTASKS": "ntasks",
}
SET_BY_SLURM = ("SLURM_LAUNCH_NODE_IPADDR", "SLURM_PROCID", "SLURM_LOCALID")
"""Variables of every step, so that a default beside them never counts."""
SWITCHES = frozenset(
    (
        *("multi_gpu", "use_fsdp", "use_deepspeed", "standalone", "no_python", "tpu", "cpu", "exclusive", "no_ssh"),
        *("m", "module", "l", "label", "u"),
    )
)
"""Options of launchers that take no value."""
LAUNCHERS = ("torchrun", "srun", "sbatch", "mpirun", "deepspeed")
SLURMS = ("srun", "sbatch")
WRAPPERS = {
    "llamafactory-cli": "${NPROC_PER_NODE:+torchrun --nproc_per_node $NPROC_PER_NODE "
    "--nnodes ${NNODES:-1}} llamafactory",
    "run_train.sh": "${NGPU:+torchrun --nproc_per_node $NGPU} torchtitan.train "
    "${CONFIG_FILE:+--job.config_file $CONFIG_FILE} ${MODULE:+--module $MODULE} ${CONFIG:+--config $CONFIG}",
}
"""The command that LLaMA-Factory (launcher.py, ff6d4d12) and torchtitan's own script (run_train.sh of 0.2.2 and of
b5bcd76c) start, with the variables that they read."""
ACCELERATE_LAUNCH = ["accelerate", "launch"]
DISTRIBUTED_MODULES = ("torch.distributed.run", "torch.distributed.launch")
PYTHON = re.compile(r"python[\d.]*")
SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
KEYWORDS = ("then", "do", "while", "until", "!", "{", "exec", "eval", "time", "nohup", "env", "sudo")
"""Words before a command that do not change what it is."""
UV_OPTIONS = ("--with", "--extra", "--group", "--python", "-p", "--package", "--project", "--directory", "--env-file")
"""Options of ``uv run`` that take a value."""
NO_TRAINING = frozenset(
    (
        *("[", "[[", "set", "echo", "printf", "mkdir", "rm", "cp"),
        *("mv", "ln", "ls", "cat", "cd", "source", ".", "trap"),
        *("export", "unset", "declare", "local", "read", "shift", "getopts", "test", "for", "case", "ulimit", "sleep"),
        *("grep", "sed", "awk", "find", "tar", "unzip", "curl", "wget", "git", "pip", "conda", "mamba", "module"),
        *("apt", "apt-get", "kill", "pkill", "scancel", "ssh"),
        *("scp", "rsync", "hostname", "scontrol", "nvidia-smi", "tee"),
        *("huggingface-cli", "hf", "wandb", "date", "touch", "chmod", "exit", "return", "wait", "jq", "kubectl"),
    )
)
"""Programs that start no training, so that their options say nothing about it."""
ENVIRONMENT = ("CUDA_DEVICE_MAX_CONNECTIONS", "WORLD_SIZE", "FORCE_TORCHRUN", "NPROC_PER_NODE", "NNODES", "USE_MCA")
"""Variables that change what a run is."""


ReadText = Callable[..., tuple[Document, ...]]


@dataclass(slots=True)
class _Script:
    """A script as far as it has been read."""

    file: str
    read_text: ReadText | None = None
    """Reads the files that the script writes out."""
    branches: list[Branches] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    programs: list[Document] = field(default_factory=list)
    num_words: int = 0

    @property
    def may_not_run(self) -> bool:
        """Whether only who runs the script knows if what is being read runs."""
        return any(branches.is_doubtful for branches in self.branches)

    def place(self, shown: str, *words: str) -> str:
        """The place of what some words say."""
        is_doubtful = self.may_not_run or any(isinstance(word, Maybe) for word in words)
        return f"{self.file}:{shown}{' in a branch that may not run' if is_doubtful else ''}"

    def say(self, key: str, value: FactValue, shown: str, *words: str) -> None:
        self.facts.append(Fact(key=key, value=value, place=self.place(shown, *words)))


def read_script(text: str, *, file: str, read_text: ReadText | None = None) -> tuple[Document, ...]:
    """The launchers of a script as one document, and the arguments of every program that they start as another.

    Args:
        text: of the script.
        file: its name.
        read_text: reads the text of a config file that the script writes, by its name.
    """
    script = _Script(file=file, read_text=read_text)
    for statement in statements(text):
        _read_statement(script, statement)
    launch = Document(file=file, facts=tuple(script.facts), program="launch")
    return (*((launch,) if script.facts else ()), *script.programs)


def _read_statement(script: _Script, statement: str) -> None:
    batch = BATCH_LINE.match(statement)
    if batch:
        key = LAUNCH_SHORT.get(batch[1], batch[1].replace("-", "_"))
        script.say(f"sbatch.{key}", scalar_of(batch[2]), f"--{batch[1]}")
        _set_slurm(script, key, batch[2])
        return
    if statement.startswith("#"):
        return
    line, written = statement, ""
    if HERE_DOCUMENT.search(statement.partition("\n")[0]):
        line, _, written = statement.partition("\n")
    line = _decided(script, line)
    label = LABEL.match(line) if script.branches and script.branches[-1].word else None
    if label:
        script.branches[-1].begin_label(label[1])
        line = line[label.end() :]
    text = _worked_out(script, line)
    if not _is_assigned(script, line, text):
        for command in commands(TEST.sub("[[", text)):
            _read_command(script, command_words(command))
    if written and _is_running(script):
        _read_written(script, text.replace(MAYBE, ""), written)


def _decided(script: _Script, line: str) -> str:
    """A statement with the words ``true``, ``false`` or ``unknown`` in place of the conditions of an ``if``.

    What a branch set which may not run decides no other branch.
    """

    def decided(match: re.Match[str]) -> str:
        condition = _worked_out(script, match[2])
        return f"{match[1]} {'unknown' if MAYBE in condition else truth(words_of(condition))}"

    line = CASE.sub(lambda match: "case $ in" if MAYBE in _worked_out(script, match[0]) else match[0], line)
    return CONDITION.sub(decided, line)


def _is_running(script: _Script) -> bool:
    """Return whether no branch around a command is one that surely does not run."""
    return all(branches.is_read for branches in script.branches)


def _is_assigned(script: _Script, line: str, text: str) -> bool:
    """Return whether a statement is the assignment of one variable, which is kept.

    Args:
        script: as far as it has been read.
        line: the statement.
        text: the statement with its variables worked out.
    """
    assignment = ASSIGNMENT.match(text)
    if not assignment or not _is_running(script):
        return False
    rest = text[assignment.end() :].rstrip("; ")
    if rest.lstrip('"').startswith(("$(", "`")):  # what a command prints is known only where it runs
        script.variables.pop(assignment[1], None)
        return True
    words = [elements(rest[1:-1])] if rest.startswith("(") and rest.endswith(")") else words_of(rest)
    if len(words) > 1 and len(words_of(line[assignment.end() :].rstrip("; "))) > 1:
        return False
    _assign(script, assignment[1], " ".join(words), is_added=bool(assignment[2]))
    return True


def _read_written(script: _Script, command: str, text: str) -> None:
    """A text that the script keeps in a variable, or writes as the config of a program, with variables worked out."""
    variable = READ_INTO.match(command)
    if variable:
        _assign(script, variable[1], " ".join(words_of(_worked_out(script, text.replace("\\\n", " ")))))
        return
    target = WRITTEN_TO.search(command)
    name = PurePath(target[1]).name if target else ""
    is_json = text.lstrip().startswith("{")
    if script.read_text is None or not (is_json or name.endswith(TREE_SUFFIXES)):
        return
    document = HERE_DOCUMENT.search(command)
    whole = text if document and document[2] else _worked_out(script, text).replace(MAYBE, "")
    try:
        whole = BARE_VARIABLE.sub(r'\1"\2"', whole) if is_json else whole
        script.programs.extend(script.read_text(whole, name=name or f"{script.file} <<"))
    except PlanError as error:
        script.programs.append(
            Document(file=name, facts=(Fact(key=name, value=str(error)[:80], place=f"{script.file}:{name}"),))
        )


def _set_slurm(script: _Script, key: str, value: str) -> None:
    if key in ("gres", "gpus_per_node"):
        script.variables["SLURM_GPUS_PER_NODE"] = script.variables["SLURM_GPUS_ON_NODE"] = value.rpartition(":")[2]
    for variable, source in SLURM_VARIABLES.items():
        if source == key and key != "gpus_per_node":
            script.variables[variable] = value


def _assign(script: _Script, name: str, value: str, *, is_added: bool = False) -> None:
    if FROM_ITS_LINE.fullmatch(value) and script.variables.get(name):  # the default stands where no argument is given
        return
    before = script.variables.get(name, "")
    after = f"{before} {value}".strip() if is_added else value
    script.variables[name] = marked(after, before) if script.may_not_run else after
    if name in ENVIRONMENT:
        script.say(f"env.{name}", scalar_of(value.replace(MAYBE, "")), name, *command_words(value))


def _worked_out(script: _Script, text: str) -> str:
    """The text with variables and whole-number arithmetic worked out, as far as the script sets them."""

    left = MAX_LINE_CHARACTERS

    def referred(match: re.Match[str]) -> str:
        nonlocal left
        name = match[1] or match[4]
        left -= len(script.variables.get(name, ""))
        if left < 0:
            return ""
        if name in script.variables:
            return script.variables[name]
        if match[2] and match[3] and name not in SET_BY_SLURM:
            value = match[3].strip("\"'")
            if match[2] == "=":
                _assign(script, name, value)
            return value
        return match[0]

    def chosen(match: re.Match[str]) -> str:
        known = script.variables.get(match[1], "").removesuffix(MAYBE)
        return match[2] if known and not known.startswith("$(") else ""

    text = ALTERNATIVE.sub(chosen, QUOTED_LIST.sub(r"\1", text))
    for _ in range(3):
        changed = REFERENCE.sub(referred, text)[:MAX_LINE_CHARACTERS]
        if changed == text:
            break
        text = changed
    return ARITHMETIC.sub(lambda match: _computed(script, match), text)


def _computed(script: _Script, expression: re.Match[str]) -> str:
    """The value of a sum of products of whole numbers, or the text as it stands where it is none."""
    text = re.sub(r"[A-Za-z_]\w*", lambda match: script.variables.get(match[0], match[0]), expression[1])
    mark, text = MAYBE * (MAYBE in text), text.replace(MAYBE, "").strip()
    operations = {"*": int.__mul__, "/": int.__floordiv__, "%": int.__mod__, "+": int.__add__, "-": int.__sub__}
    for pattern in (PRODUCT, SUM):
        while match := pattern.search(text):
            first, second = int(match[1][:12]), int(match[3][:12])
            if second == 0 and match[2] in "/%":
                return expression[0]
            text = text[: match.start()] + str(operations[match[2]](first, second)) + text[match.end() :]
    return text + mark if text.lstrip("-").isdigit() else re.sub(r"\s", "", expression[0])


def _read_command(script: _Script, words: list[str]) -> None:
    """One command: variables before it, launchers around launchers, and at last the program."""
    script.num_words += len(words)
    words = after_keyword(script.branches, words)
    if words[:1] == ["export"]:
        words = [word for word in words if ASSIGNMENT.match(word)]
    while words and script.num_words < MAX_WORDS and words[0] not in NO_TRAINING and _is_running(script):
        inner_script = _inner_script(words)
        if inner_script is not None:
            for statement in statements(inner_script):
                _read_statement(script, statement)
            return
        inner = _unwrapped(script, words)
        if inner is None:
            _read_program(script, words)
            return
        words = inner


def _inner_script(words: list[str]) -> str | None:
    """The text that ``bash -c`` is given; ``None`` for another command."""
    options = list(takewhile(lambda word: word.startswith("-"), words[1:])) if words[0] in SHELLS else []
    has_text = any("c" in option for option in options) and len(words) > len(options) + 1
    return as_written(words[len(options) + 1]) if has_text else None


def _unwrapped(script: _Script, words: list[str]) -> list[str] | None:
    """A command without the variable, keyword or launcher in front; ``None`` where the program itself stands there."""
    name = words[0]
    prefix = ASSIGNMENT.match(name)
    if prefix:
        _assign(script, prefix[1], as_written(name)[prefix.end() :])
        return words[1:]
    program = name.rpartition("/")[2]
    if program in WRAPPERS:
        return [*command_words(_worked_out(script, WRAPPERS[program])), *words[1:]]
    if program in LAUNCHERS:
        started = _read_launcher(script, program, words)
        if program == "srun" and started[:1] and started[0] in SHELLS and _inner_script(started) is None:
            script.say("srun.starts_script", True, "srun")  # which says itself how many processes it starts
        return started
    if words[:2] == ACCELERATE_LAUNCH:
        return _read_launcher(script, "accelerate", words[1:])
    is_python = PYTHON.fullmatch(program) or (name.startswith("$") and words[1:2] == ["-m"])
    if (is_python and words[1:]) or words[:2] == ["uv", "run"]:
        return _after_python(words[1:]) if is_python else _after_uv(words[2:])
    # An empty word is a variable that is empty; one with a dollar is a variable that only its user knows.
    is_unknown = not name or (name.startswith("$") and bool(words[1:]) and not words[1].startswith("-"))
    return words[1:] if is_unknown or name in (*KEYWORDS, *SHELLS) else None


def _after_uv(words: list[str]) -> list[str]:
    """What ``uv run`` runs, without its own options."""
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in UV_OPTIONS else 1 :]
    return words


def _after_python(words: list[str]) -> list[str]:
    while words and words[0].startswith("-") and words[0] != "-m":
        words = [] if words[0] == "-c" else words[2 if words[0] in ("-X", "-W") else 1 :]
    if words[:1] == ["-m"] and words[1:2] and words[1] in DISTRIBUTED_MODULES:
        return ["torchrun", *words[2:]]
    if words[:2] == ["-m", "accelerate.commands.launch"]:
        return [*ACCELERATE_LAUNCH, *words[2:]]
    return words[1:] if words[:1] == ["-m"] else words


def _read_launcher(script: _Script, launcher: str, words: list[str]) -> list[str]:
    """Say the options of a launcher, whose own word stands first, and return what it starts."""
    script.say(f"{launcher}.is_used", True, launcher, words[0])
    words = words[1:]
    if words and words[0].startswith("$"):
        script.say(f"{launcher}.more", True, words[0])
    while words and words[0].startswith("-"):
        said = words[:1]
        option, has_value, value = words[0].lstrip("-").partition("=")
        short = re.fullmatch(r"([NncG])(\d+)", option)
        if short:
            option, has_value, value = short[1], "=", short[2]
        key = (LAUNCH_SHORT.get(option, option) if launcher in (*SLURMS, "mpirun") else option).replace("-", "_")
        words = words[1:]
        is_switch = has_value or key in SWITCHES or not words or words[0].startswith("--") or words[0].endswith(".py")
        if not is_switch:
            value, words = words[0], words[1:]
            said.append(value)
        if key in ("m", "module") and launcher != "mpirun":
            return words
        if key == "wrap" and launcher == "sbatch":
            return ["bash", "-c", value]
        shown = f"--{option}" if len(option) > 1 else f"-{option}"
        script.say(f"{launcher}.{key}", scalar_of(str(value)) if value else True, shown, *said)
        if launcher in SLURMS:
            _set_slurm(script, key, as_written(value))
    return words


def _read_program(script: _Script, words: list[str]) -> None:
    """The arguments of a program as facts; ``a.b=c`` is one, as Hydra and Megatron-Bridge read it."""
    program = "" if words[0].startswith("-") else str(words[0])
    facts: list[Fact] = []
    rest = words if not program else words[1:]
    index = 0
    while index < len(rest):
        word = rest[index]
        index += 1
        if word.startswith("--") or re.fullmatch(r"-[A-Za-z]\w*", word):
            option, has_value, value = word.partition("=")
            values = [value] if has_value else []
            while not has_value and index < len(rest) and not NEXT_ARGUMENT.match(rest[index]):
                values.append(rest[index])
                index += 1
            facts.append(_argument(script, option, values, said=[word, *values]))
        elif re.fullmatch(r"\+{0,2}[\w.]+=.*", word):
            key, _, value = word.lstrip("+").partition("=")
            facts.append(_argument(script, key, [value], said=[word]))
        elif "." in word:
            facts.append(Fact(key="argument_file", value=str(word), place=script.place(word, word)))
    if facts:
        script.programs.append(Document(file=script.file, facts=tuple(facts), program=program or "arguments"))


def _argument(script: _Script, option: str, values: list[str], *, said: list[str]) -> Fact:
    scalars = tuple(scalar_of(str(value)) for value in values)
    value: FactValue = True if not scalars else scalars[0] if len(scalars) == 1 else scalars
    return Fact(key=option.lstrip("-").replace("-", "_"), value=value, place=script.place(option, *said))
