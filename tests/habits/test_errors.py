"""Every error has a code that is explained in docs/errors.md and a fix that can really be typed."""

import ast
import inspect
import re

import pytest

from habits.source_tree import ROOT, imported_modules, keyword_strings, parsed_files
from shardwise.cli.command import COMMANDS, find_command, make_parser
from shardwise.cli.help_page import option_names
from shardwise.errors import ShardwiseError
from shardwise.rules import RANGE_RULES, RULES

ERRORS_PAGE = ROOT / "docs" / "errors.md"
OTHER_RAISES = frozenset({"ArgumentTypeError", "MCPError", "SystemExit"})
"""What may be raised besides our own errors: argparse makes a usage error of the first, the SDK of an assistant's
protocol sends the second to the client, the third ends the program."""
COMMAND = re.compile(r"`(shardwise [a-z][^`{}]*?)`")
OPTION = re.compile(r"--[a-z][a-z0-9-]+")


def headings(text: str) -> set[str]:
    return set(re.findall(r"^## ([a-z0-9-]+)$", text, flags=re.MULTILINE))


def codes_in_source() -> set[str]:
    return {code for _, tree in parsed_files() for code in keyword_strings(tree, "code")}


def our_errors() -> dict[str, type[ShardwiseError]]:
    return {
        name: value
        for module in imported_modules()
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, ShardwiseError)
    }


def raise_faults(tree: ast.AST, ours: set[str]) -> list[str]:
    """Raised calls that are not ours, or ours without a code and a fix."""
    faults = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        name = ast.unparse(node.exc.func).rpartition(".")[2]
        given = {argument.arg for argument in node.exc.keywords}
        if name in ours and not {"code", "fix"} <= given:
            faults.append(f"line {node.lineno}: {name} without code and fix")
        if name[:1].isupper() and name not in ours and name not in OTHER_RAISES:
            faults.append(f"line {node.lineno}: {name} is not a ShardwiseError")
    return faults


def known_options() -> set[str]:
    return {name for entry in COMMANDS for name in option_names(make_parser(entry, entry.load()))}


def test_every_code_is_explained_in_the_error_page():
    assert sorted(codes_in_source() - headings(ERRORS_PAGE.read_text(encoding="utf-8"))) == []


def test_every_explained_code_is_used():
    source = "\n".join(ast.unparse(tree) for _, tree in parsed_files())
    page = headings(ERRORS_PAGE.read_text(encoding="utf-8"))
    assert sorted(code for code in page if f"'{code}'" not in source) == []


def test_every_rule_is_explained_in_the_error_page():
    names = {rule.name for rule in (*RULES, *RANGE_RULES)}
    assert sorted(names - headings(ERRORS_PAGE.read_text(encoding="utf-8"))) == []


def test_a_code_without_a_heading_is_found():
    codes = keyword_strings(ast.parse("raise PlanError('no', code='plan-unheard-of', fix='x')"), "code")
    assert codes == ["plan-unheard-of"]
    assert "plan-unheard-of" not in headings("## plan-file\n\ntext\n\n### plan-unheard-of\n")


def test_every_raise_is_a_shardwise_error_with_code_and_fix():
    ours = set(our_errors())
    found = [
        f"{path.name} {fault}"
        for path, tree in parsed_files()
        if path.name != "errors.py" or path.parent.name != "shardwise"
        for fault in raise_faults(tree, ours)
    ]
    assert found == []


def test_a_bare_value_error_is_found():
    tree = ast.parse("raise ValueError('x')\nraise PlanError('x', code='y')")
    assert raise_faults(tree, {"PlanError"}) == [
        "line 1: ValueError is not a ShardwiseError",
        "line 2: PlanError without code and fix",
    ]


@pytest.mark.parametrize(("message", "code", "fix"), [("", "a", "b"), ("a", "", "b"), ("a", "b", "")])
def test_an_error_cannot_be_made_without_code_or_fix(message, code, fix):
    with pytest.raises(TypeError, match="needs a message, a code and a fix"):
        ShardwiseError(message, code=code, fix=fix)


def test_every_option_named_in_a_fix_exists():
    fixes = [(path.name, fix) for path, tree in parsed_files() for fix in fix_texts(tree)]
    options = known_options() | {"--help", "--version"}
    assert [(name, word) for name, fix in fixes for word in OPTION.findall(fix) if word not in options] == []


def test_every_command_named_in_a_fix_is_one_the_program_takes():
    fixes = [fix for _, tree in parsed_files() for fix in fix_texts(tree)]
    named = {command for fix in fixes for command in COMMAND.findall(fix)}
    assert named
    for command in sorted(named):
        entry = find_command(command.split()[1])
        make_parser(entry, entry.load()).parse_args(command.partition(" <")[0].split()[2:])


def fix_texts(tree: ast.AST) -> list[str]:
    """The source of every ``fix=`` argument, so that f-strings count too."""
    return [
        ast.unparse(argument.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for argument in call.keywords
        if argument.arg == "fix"
    ]


def test_an_option_that_does_not_exist_is_found():
    fixes = fix_texts(ast.parse("E('x', code='y', fix=f'add --no-such-option {n}')"))
    assert [word for fix in fixes for word in OPTION.findall(fix) if word not in known_options()] == [
        "--no-such-option"
    ]
