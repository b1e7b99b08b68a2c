"""The server of `shardwise mcp`: tools and the planner prompt by the official SDK, over standard input and output."""

import json
from importlib.resources import files
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from shardwise import __version__
from shardwise.cli.mcp_tools import TOOLS, ToolAnswer, ToolEntry, call_tool, input_schema

PROMPT = types.Prompt(
    name="plan-a-training-run",
    description="How to plan a large training run with these tools: what to ask, call and say, and never to invent",
    arguments=[types.PromptArgument(name="question", description="what the user wants to know")],
)
INSTRUCTIONS = (
    f"Every number comes from a tool. The prompt {PROMPT.name} says what to ask, what to say and how to read errors."
)


def serve() -> None:
    """Answer requests until the client goes away."""
    anyio.run(_serve)


async def _serve() -> None:
    server = make_server()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def make_server() -> Server[Any]:
    """The server, which runs one command at a time while it goes on listening."""
    turn = anyio.Lock()

    async def call(_: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        async with turn:
            answer = await anyio.to_thread.run_sync(call_tool, params.name, params.arguments or {})
        return _result(answer)

    return Server(
        "shardwise",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=call,
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
    )


def _result(answer: ToolAnswer) -> types.CallToolResult:
    text = json.dumps(answer.content, ensure_ascii=False)
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=answer.content, is_error=answer.is_error
    )


async def _list_tools(_: ServerRequestContext[Any], __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_described(tool) for tool in TOOLS])


def _described(tool: ToolEntry) -> types.Tool:
    schema = input_schema(tool)
    hints = types.ToolAnnotations(
        read_only_hint=not tool.writes, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema, annotations=hints)


async def _list_prompts(
    _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[PROMPT])


async def _get_prompt(_: ServerRequestContext[Any], params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """The planner prompt, with the user's question below it where the client has one."""
    if params.name != PROMPT.name:
        raise MCPError(types.INVALID_PARAMS, f"there is no prompt '{params.name[:40]}'; ask for {PROMPT.name}")
    question = (params.arguments or {}).get("question", "")
    text = f"{planner_prompt()}\n{question}".rstrip() + "\n"
    content = types.TextContent(text=text)
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


def planner_prompt() -> str:
    """The text of docs/planner-prompt.md."""
    return files("shardwise").joinpath("cli/planner-prompt.md").read_text(encoding="utf-8")
