"""`shardwise mcp`, asked by the SDK's own client over real standard input and output."""

import subprocess
import sys

import pytest
from mcp.shared.exceptions import MCPError

from cli.mcp_session import session
from habits.source_tree import ROOT, SOURCE
from shardwise.cli.command import COMMANDS
from shardwise.cli.main import main
from shardwise.cli.mcp_tools import call_tool

__all__ = ["session"]
PREDICTED = {"source": "llama-3.1-8b", "cluster": "8xh100-sxm", "dp_shard": 8, "seq_len": 4096}


def tools_of(session):
    return {tool.name: tool for tool in session.list_tools().tools}


def test_the_tools_are_commands_and_judge_is_one_as_soon_as_it_exists(session):
    wanted = ["plan", "predict", "explain", "judge", "import", "export", "cost", "simulate", "reconcile"]
    commands = {entry.name for entry in COMMANDS}
    assert list(tools_of(session)) == [name for name in wanted if name in commands]
    assert set(wanted) - commands <= {"judge"}


def test_a_schema_says_types_and_choices_and_what_is_needed(session):
    schema = tools_of(session)["export"].input_schema
    assert schema["required"] == ["source", "to"]
    assert schema["properties"]["to"]["enum"] == [
        "torchtitan",
        "torchtitan-recipe",
        "megatron",
        "deepspeed",
        "accelerate",
    ]
    plan = tools_of(session)["plan"].input_schema["properties"]
    assert plan["compile"]["type"] == "boolean"
    assert plan["price"]["type"] == "number"
    assert plan["max_gpus"]["type"] == "integer"
    assert all(
        one["description"] for tool in tools_of(session).values() for one in tool.input_schema["properties"].values()
    )


def test_null_takes_back_what_a_plan_says_and_is_no_value_of_anything_else(session):
    """As explain asks for it: ``recompute_layers: null``."""
    properties = tools_of(session)["predict"].input_schema["properties"]
    assert properties["recompute_layers"]["type"] == ["integer", "null"]
    assert properties["tp"]["type"] == "integer"
    nullable = [one for one in properties.values() if None in one.get("enum", ()) or "null" in one.get("type", ())]
    assert nullable
    recipe = {"seq_len": 4096, "recompute": "full", "recompute_layers": 4}
    plan = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": recipe}
    kept = call_tool("predict", {"source": plan, "tp": None})
    taken = call_tool("predict", {"source": plan, "recompute_layers": None})
    alike = call_tool("predict", {"source": {**plan, "recipe": {**recipe, "recompute_layers": None}}})
    assert taken.content["memory"] == alike.content["memory"] != kept.content["memory"]


def test_no_tool_overwrites_and_only_those_with_a_path_write(session):
    tools = tools_of(session)
    assert not any("force" in tool.input_schema["properties"] for tool in tools.values())
    writing = {name for name, tool in tools.items() if not tool.annotations.read_only_hint}
    assert writing == {name for name, tool in tools.items() if "out" in tool.input_schema["properties"]}
    assert "predict" not in writing


def test_the_descriptions_of_all_tools_take_less_than_8000_tokens(session):
    assert sum(len(tool.model_dump_json()) for tool in tools_of(session).values()) < 4 * 8000


def test_a_tool_gives_the_numbers_of_the_command(session, capsys):
    is_error, answer = session.call("predict", PREDICTED)
    assert not is_error
    assert main(["predict", "llama-3.1-8b", "8xh100-sxm", "--dp-shard", "8", "--seq-len", "4096"]) == 0
    assert f"{1000 * answer['time']['step_s']:.1f} ms a step" in capsys.readouterr().out
    assert "stages" not in answer["memory"]


def test_a_file_is_written_where_the_call_says_and_not_twice(session, tmp_path):
    out = tmp_path / "plan.json"
    question = {"source": "qwen3-0.6b", "cluster": "h100-sxm", "seq_len": 1024, "out": str(out)}
    assert not session.call("plan", question)[0]
    written = out.read_text(encoding="utf-8")
    is_error, answer = session.call("plan", question)
    assert (is_error, answer["code"]) == (True, "output-exists")
    assert out.read_text(encoding="utf-8") == written


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "fix"),
    [
        ("predict", {**PREDICTED, "dp_shard": 3}, "layout-world-size", "set dp_shard=8"),
        ("predict", {"sourc": "llama-3.1-8b"}, "cli-usage", "use source"),
        ("predict", {"source": "-"}, "plan-empty", "write at least"),
        ("export", {"source": "llama-3.1-8b"}, "cli-usage", "--help"),
        ("predict", {"source": "no-such-model", "cluster": "8xh100-sxm"}, "model-unknown-name", ""),
        ("train", {}, "cli-usage", "call one of plan"),
    ],
)
def test_an_error_comes_back_with_its_fix(session, tool, arguments, code, fix):
    is_error, answer = session.call(tool, arguments)
    assert is_error
    assert (answer["ok"], answer["code"]) == (False, code)
    assert fix in answer["fix"]


def test_a_file_in_the_call_leaves_no_trace(session):
    files = [{"name": "../ds.json", "text": '{"train_batch_size": 8, "fp16": {"enabled": true}}'}]
    is_error, answer = session.call("import", {"files": files, "cluster": "8xv100-sxm2-32"})
    assert not is_error
    assert answer["known"]["precision"] == {"value": "fp16-mixed", "place": "ds.json:fp16.enabled"}
    assert answer["plan"]["code"] == "import-open"


def test_the_prompt_is_the_page_of_the_documentation(session):
    (prompt,) = session.list_prompts().prompts
    page = (ROOT / "docs" / "planner-prompt.md").read_text(encoding="utf-8")
    assert (SOURCE / "cli" / "planner-prompt.md").read_text(encoding="utf-8") == page
    assert session.get_prompt(prompt.name).messages[0].content.text == page
    asked = session.get_prompt(prompt.name, {"question": "70B on 64 H100?"}).messages[0].content.text
    assert asked == f"{page}\n70B on 64 H100?\n"
    with pytest.raises(MCPError, match=f"ask for {prompt.name}"):
        session.get_prompt("no-such-prompt")


def test_the_prompt_names_every_tool_and_arguments_that_exist(session):
    page = (ROOT / "docs" / "planner-prompt.md").read_text(encoding="utf-8")
    tools = tools_of(session)
    assert [name for name in (*tools, "judge") if f"`{name}`" not in page] == []
    arguments = {name for tool in tools.values() for name in tool.input_schema["properties"]}
    assert {"gpus", "gpu_types", "seq_len", "global_batch_size", "global_batch_tokens", "oom", "out"} <= arguments


def test_a_server_starts_without_torch():
    program = "import sys, shardwise.cli.mcp_server as server; server.make_server(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_the_sdk_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    monkeypatch.delitem(sys.modules, "shardwise.cli.mcp_server", raising=False)
    assert main(["mcp"]) == 2
    assert "pip install 'shardwise[mcp]'" in capsys.readouterr().err
