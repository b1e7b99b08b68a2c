"""Shell scripts, batch scripts and command lines: variables worked out, launchers and programs told apart.

Nothing is run. A variable that the script does not set stays as it is written and leaves its key open.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from shardwise.exchange.facts import Document, Fact, FactValue, scalar_of

MAX_WORDS = 20_000
MAX_LINE_CHARACTERS = 50_000
"""The longest line that is read. A line with variables worked out is cut here too, so that variables that contain
each other do not grow it without end."""
ASSIGNMENT = re.compile(r"^(?:(?:export|local|declare|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=")
LIST_START = re.compile(ASSIGNMENT.pattern + r"\(")
REFERENCE = re.compile(r"\\?\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?([-=])([^{}]*))?\}|([A-Za-z_]\w*))")
QUOTED_LIST = re.compile(r'"(\$\{\w+\[[@*]\]\})"')
"""A list in quotes stands for its elements, each a word, as without the quotes."""
ALTERNATIVE = re.compile(r"\$\{([A-Za-z_]\w*):?\+([^{}]*)\}")
"""Words that stand there only where a variable is set."""
ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
PRODUCT = re.compile(r"(\d+)\s*([*/%])\s*(\d+)")
SUM = re.compile(r"(\d+)\s*([+-])\s*(\d+)")
BATCH_LINE = re.compile(r"^#SBATCH\s+--?([\w-]+)[= ]\s*([^#\s]+)")
BATCH_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus"}
LAUNCH_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus_per_task"}
HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*[\"']?([A-Za-z_]\w*)[\"']?")
"""The start of a text that ends with the word named here; nothing in it is a command."""
RUNS_ITS_TEXT = re.compile(r"(?:sbatch|bash|sh)\b")
"""Programs for which such a text is the script itself."""
CASE_LABEL = re.compile(r"\(?[^\s()$\"'=]+\)(?=\s|$)")
"""The patterns before a branch of ``case``, such as ``-h|--help)``."""
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
        "multi_gpu",
        "use_fsdp",
        "use_deepspeed",
        "standalone",
        "no_python",
        "tpu",
        "cpu",
        "exclusive",
        "no_ssh",
        "m",
        "l",
        "label",
        "u",
    )
)
"""Options of launchers that take no value."""
LAUNCHERS = {"torchrun": "torchrun", "srun": "srun", "mpirun": "mpirun", "deepspeed": "deepspeed"}
ACCELERATE_LAUNCH = ["accelerate", "launch"]
DISTRIBUTED_MODULES = ("torch.distributed.run", "torch.distributed.launch")
PYTHON = re.compile(r"python[\d.]*")
SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
KEYWORDS = ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "exec", "time", "nohup", "env", "sudo")
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


@dataclass(slots=True)
class _Script:
    """A script as far as it has been read."""

    file: str
    variables: dict[str, str] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    programs: list[Document] = field(default_factory=list)
    num_words: int = 0

    def say(self, key: str, value: FactValue, shown: str) -> None:
        self.facts.append(Fact(key=key, value=value, place=f"{self.file}:{shown}"))


def read_script(text: str, *, file: str) -> tuple[Document, ...]:
    """The launchers of a script as one document, and the arguments of every program that they start as another."""
    script = _Script(file=file)
    for statement in _statements(text):
        _read_statement(script, statement)
    launch = Document(file=file, facts=tuple(script.facts), program="launch")
    return (*((launch,) if script.facts else ()), *script.programs)


def _statements(text: str) -> Iterator[str]:
    """Yield whole statements: a line that ends in a backslash, an open quote or an open list is joined to the next."""
    pending = end_of_file = ""
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if end_of_file:
            end_of_file = "" if stripped == end_of_file else end_of_file
            continue
        is_comment = stripped.startswith("#") and not (stripped.startswith("#SBATCH") and not pending)
        if (is_comment and not _in_quotes(pending)) or not (stripped or pending):
            continue
        pending = f"{pending}\n{stripped.partition(' #')[0] if pending else stripped}".strip()
        document = HERE_DOCUMENT.search(stripped)
        end_of_file = document[1] if document and not RUNS_ITS_TEXT.match(stripped) else ""
        if document or len(pending) > MAX_LINE_CHARACTERS or not _is_open(pending):
            yield pending[:MAX_LINE_CHARACTERS]
            pending = ""
    if pending:
        yield pending


def _is_open(text: str) -> bool:
    """Return whether a quote, or the list of an assignment, has no end yet."""
    plain = re.sub(r"\\.", "", text)
    in_list = LIST_START.match(plain) is not None and not plain.rstrip().endswith(")")
    return in_list or _in_quotes(text)


def _in_quotes(text: str) -> bool:
    """Return whether a quote has no end yet."""
    plain = re.sub(r"\\.", "", text)
    without_single = re.sub(r"'[^']*'", "", re.sub(r'"[^"]*"', "", plain))
    return "'" in without_single.replace('"', "") or '"' in without_single


def _read_statement(script: _Script, statement: str) -> None:
    batch = BATCH_LINE.match(statement)
    if batch:
        key = BATCH_SHORT.get(batch[1], batch[1].replace("-", "_"))
        script.say(f"sbatch.{key}", scalar_of(batch[2]), f"--{batch[1]}")
        _set_slurm(script, key, batch[2])
        return
    if statement.startswith("#"):
        return
    text = _worked_out(script, CASE_LABEL.sub("", statement, count=1) if CASE_LABEL.match(statement) else statement)
    assignment = ASSIGNMENT.match(text)
    if assignment:
        rest = text[assignment.end() :]
        if rest.lstrip('"').startswith(("$(", "`")):  # what a command prints is known only where it runs
            script.variables.pop(assignment[1], None)
            return
        words = [_elements(rest[1:-1])] if rest.startswith("(") and rest.endswith(")") else _words(rest)
        if len(words) <= 1 or rest[:1] in "\"'(":
            _assign(script, assignment[1], " ".join(words), is_added=bool(assignment[2]))
            return
    for command in _commands(text):
        _read_command(script, _words(command))


def _commands(text: str) -> Iterator[str]:
    """The commands of a statement, which a semicolon, a bar or an ampersand outside quotes ends.

    >>> list(_commands("clear; srun bash -c 'a; b' 2>&1 | tee log"))
    ['clear', " srun bash -c 'a; b' 2>&1 ", ' tee log']
    """
    start, quote = 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[index - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character in ";|" or (character == "&" and text[index - 1 : index] not in (">", "<")):
            if text[start:index].strip():
                yield text[start:index]
            start = index + 1
    yield text[start:]


def _elements(text: str) -> str:
    """The elements of a list as they are when it stands unquoted: an option written with its value is two words.

    >>> _elements('--bf16 "--lr 0.1" --data "a b"  # why')
    "--bf16 --lr 0.1 --data 'a b'"
    """
    return " ".join(
        shlex.quote(word) if re.search(r"[\s;&|'\"]", word) and not word.startswith("-") else word
        for word in _words(text)
    )


def _set_slurm(script: _Script, key: str, value: str) -> None:
    if key in ("gres", "gpus_per_node"):
        script.variables["SLURM_GPUS_PER_NODE"] = script.variables["SLURM_GPUS_ON_NODE"] = value.rpartition(":")[2]
    for variable, source in SLURM_VARIABLES.items():
        if source == key and key != "gpus_per_node":
            script.variables[variable] = value


def _assign(script: _Script, name: str, value: str, *, is_added: bool = False) -> None:
    script.variables[name] = f"{script.variables.get(name, '')} {value}".strip() if is_added else value
    if name in ENVIRONMENT:
        script.say(f"env.{name}", scalar_of(value), name)


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
        known = script.variables.get(match[1], "")
        return match[2] if known and not known.startswith("$(") else ""

    text = ALTERNATIVE.sub(chosen, QUOTED_LIST.sub(r"\1", text))
    for _ in range(3):
        changed = REFERENCE.sub(referred, text)[:MAX_LINE_CHARACTERS]
        if changed == text:
            break
        text = changed
    return ARITHMETIC.sub(lambda match: _computed(script, match[1]), text)


def _computed(script: _Script, expression: str) -> str:
    """The value of a sum of products of whole numbers, or the text where it is none.

    >>> _computed(_Script(file="x"), "2 * 8 + 1")
    '17'
    """
    text = re.sub(r"[A-Za-z_]\w*", lambda match: script.variables.get(match[0], match[0]), expression).strip()
    operations = {"*": int.__mul__, "/": int.__floordiv__, "%": int.__mod__, "+": int.__add__, "-": int.__sub__}
    for pattern in (PRODUCT, SUM):
        while match := pattern.search(text):
            first, second = int(match[1][:12]), int(match[3][:12])
            if second == 0 and match[2] in "/%":
                return text
            text = text[: match.start()] + str(operations[match[2]](first, second)) + text[match.end() :]
    return text


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote without an end
        return text.split()


def _read_command(script: _Script, words: list[str]) -> None:
    """One command: variables before it, launchers around launchers, and at last the program."""
    script.num_words += len(words)
    while words and script.num_words < MAX_WORDS and words[0] not in NO_TRAINING:
        inner_script = _inner_script(words)
        if inner_script is not None:
            for statement in _statements(inner_script):
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
    return words[len(options) + 1] if has_text else None


def _unwrapped(script: _Script, words: list[str]) -> list[str] | None:
    """A command without the variable, keyword or launcher in front; ``None`` where the program itself stands there."""
    name = words[0]
    prefix = ASSIGNMENT.match(name)
    if prefix:
        _assign(script, prefix[1], name[prefix.end() :])
        return words[1:]
    program = name.rpartition("/")[2]
    if program in LAUNCHERS:
        started = _read_launcher(script, LAUNCHERS[program], words[1:])
        if program == "srun" and started[:1] and started[0] in SHELLS and _inner_script(started) is None:
            script.say("srun.starts_script", True, "srun")  # which says itself how many processes it starts
        return started
    if words[:2] == ACCELERATE_LAUNCH:
        return _read_launcher(script, "accelerate", words[2:])
    is_python = PYTHON.fullmatch(program) or (name.startswith("$") and words[1:2] == ["-m"])
    if is_python and words[1:]:
        return _after_python(words[1:])
    if words[:2] == ["uv", "run"]:
        return _after_uv(words[2:])
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
    """Say the options of a launcher and return what it starts."""
    script.say(f"{launcher}.is_used", True, launcher)
    if words and words[0].startswith("$"):
        script.say(f"{launcher}.more", True, words[0])
    while words and words[0].startswith("-"):
        option, has_value, value = words[0].lstrip("-").partition("=")
        short = re.fullmatch(r"([Nnc])(\d+)", option)
        if short:
            option, has_value, value = short[1], "=", short[2]
        key = (LAUNCH_SHORT.get(option, option) if launcher in ("srun", "mpirun") else option).replace("-", "_")
        words = words[1:]
        if not has_value and key not in SWITCHES and words and not words[0].startswith("--"):
            value, words = words[0], words[1:]
        if key == "m" and launcher != "mpirun":
            return words
        script.say(
            f"{launcher}.{key}", scalar_of(value) if value else True, f"--{option}" if len(option) > 1 else f"-{option}"
        )
        if launcher == "srun":
            _set_slurm(script, key, value)
    return words


def _read_program(script: _Script, words: list[str]) -> None:
    """The arguments of a program as facts; ``a.b=c`` is one, as Hydra and Megatron-Bridge read it."""
    program = "" if words[0].startswith("-") else words[0]
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
            facts.append(_argument(script, option, values))
        elif re.fullmatch(r"\+{0,2}[\w.]+=.*", word):
            key, _, value = word.lstrip("+").partition("=")
            facts.append(_argument(script, key, [value]))
        elif "." in word:
            facts.append(Fact(key="argument_file", value=word, place=f"{script.file}:{word}"))
    if facts:
        script.programs.append(Document(file=script.file, facts=tuple(facts), program=program or "arguments"))


def _argument(script: _Script, option: str, values: list[str]) -> Fact:
    scalars = tuple(scalar_of(value) for value in values)
    value: FactValue = True if not scalars else scalars[0] if len(scalars) == 1 else scalars
    return Fact(key=option.lstrip("-").replace("-", "_"), value=value, place=f"{script.file}:{option}")
