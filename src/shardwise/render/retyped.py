"""A command typed again with a change of the plan as options."""

import re
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from shardwise.catalog import read_cluster
from shardwise.cluster import Cluster
from shardwise.errors import ShardwiseError
from shardwise.explain.records import VerifiedChange
from shardwise.fields import plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.render.layout_words import typed_option
from shardwise.render.next_lines import as_command
from shardwise.rules import Changes
from shardwise.rules.changes import changes_text, merge
from shardwise.search.candidates import SEARCHED_FIELDS

TYPED = {
    **{"deadline_days": "--deadline-days", "budget_usd": "--budget-usd", "engine": "--engine"},
    **{field.name: field.option for record in (Layout, Recipe) for field in plan_fields(record)},
}
"""The options that make changes of a question; a cluster is another word, and a bound is left out."""
HARDWARE = ("num_nodes", "num_gpus", "gpu")
FREED = "no bound on "
CLUSTER_COUNT = re.compile(r"^\d+(?=x[a-z])")


def change_options(change: str) -> Sequence[str]:
    """The options of a changed question; nothing where it is no matter of options alone.

    >>> change_options("optimizer=adamw-8bit compile=true"), change_options("num_gpus=3")
    (['--optimizer adamw-8bit', '--compile'], [])
    >>> change_options("activation_offload=false"), change_options("no bound on tp")
    (['--no-activation-offload'], [])
    >>> change_options("recompute=selective recompute_modules=[core_attn,moe_act]"), change_options("stage_layers=null")
    (['--recompute selective', '--recompute-modules core_attn,moe_act'], ['--stage-layers null'])
    """
    pairs = [one.partition("=") for one in change.split(" ")]
    if ", " in change or not all(name in TYPED and value for name, _, value in pairs):
        return []
    switches: dict[str, bool] = {"true": True, "false": False}
    return [typed_option(TYPED[name], switches.get(value, value.strip("[]"))) for name, _, value in pairs]


def searched(command: str, names: Collection[str] = ()) -> str:
    """The command without the options of fields that a search chooses by itself, or of those that are named.

    >>> searched("shardwise plan llama-3.1-8b 8xh100 --tp 8 --sequence-parallel --recompute=full --precision bf16")
    'shardwise plan llama-3.1-8b 8xh100 --precision bf16'
    """
    layout = [field.name for field in plan_fields(Layout)]
    for field in (*plan_fields(Layout), *plan_fields(Recipe)):
        if field.name not in (names or (*layout, *SEARCHED_FIELDS)):
            continue
        command = _without(command, field.option.removeprefix("--"), has_value=field.kind != "flag")
    return command


def without_options(command: str, options: Sequence[str]) -> str:
    """The command without options and their values."""
    for option in options:
        command = _without(command, option.removeprefix("--"), has_value=True)
    return command


def retyped(command: str, options: Sequence[str]) -> str:
    """The command with options in place of those that it has of the same names.

    >>> retyped("shardwise plan llama-3.1-8b 8xh100 --seq-len 8192 --compile", ["--seq-len 4096", "--no-compile"])
    'shardwise plan llama-3.1-8b 8xh100 --seq-len 4096 --no-compile'
    """
    for option in options:
        name, has_value, _ = option.removeprefix("--").removeprefix("no-").partition(" ")
        command = _without(command, name, has_value=bool(has_value))
    return " ".join((command, *options))


def retried(command: str, change: str, *, asked: Cluster | None, cluster: Cluster) -> str:
    """The command of a changed question; empty where no words of a command say the change.

    Args:
        command: as it was typed.
        change: of the question.
        asked: the cluster that was asked about, where that is known.
        cluster: that of the changed question.

    >>> from shardwise.catalog import read_cluster
    >>> one, two, other = (read_cluster(name) for name in ("8xh100-sxm", "16xh100-sxm", "8xh200-sxm"))
    >>> retried("shardwise plan mixtral-8x22b 8xh100-sxm", "num_nodes=2 global_batch_size=64", asked=one, cluster=two)
    'shardwise plan mixtral-8x22b 16xh100-sxm --global-batch-size 64'
    >>> retried("shardwise plan mixtral-8x22b 1xdgx-h100 --tp 4", "num_nodes=2", asked=one, cluster=two)
    'shardwise plan mixtral-8x22b 2xdgx-h100 --tp 4'
    >>> retried("shardwise explain plan.json", "gpu=h200-sxm", asked=one, cluster=other)
    'shardwise explain plan.json --cluster 8xh200-sxm'
    >>> retried("shardwise plan llama-2-13b 1xh100 --offload none", "no bound on offload", asked=one, cluster=one)
    'shardwise plan llama-2-13b 1xh100'
    >>> retried("shardwise plan llama-2-13b 1xh100", "host_memory_gib=512", asked=one, cluster=one)
    ''
    """
    if change.startswith(FREED):
        return searched(command, [change.removeprefix(FREED)])
    words = change.split(" ")
    others = [word for word in words if word.partition("=")[0] not in HARDWARE]
    options = change_options(" ".join(others))
    if bool(others) != bool(options):
        return ""
    if len(others) < len(words):
        command = "" if asked is None else _on_cluster(command, asked=asked, cluster=cluster)
    return retyped(command, options) if command else ""


def _on_cluster(command: str, *, asked: Cluster, cluster: Cluster) -> str:
    """The command with another cluster: in place of the word that names one, or beside a file that names its own."""
    words = command.split(" ")
    now = words[3] if len(words) > 3 and _named(words[3]) is not None else ""
    count = CLUSTER_COUNT.search(now)
    if count is not None and cluster.gpu.id == asked.gpu.id:
        is_in_gpus = int(count.group()) == asked.num_gpus
        new = f"{cluster.num_gpus if is_in_gpus else cluster.num_nodes}{now[count.end() :]}"
    else:
        new = f"{cluster.num_gpus}x{cluster.gpu.id}"
        if _named(new) is None:
            return ""
    return " ".join([*words[:3], new, *words[4:]]) if now else retyped(command, [f"--cluster {new}"])


def _named(word: str) -> Cluster | None:
    try:
        return None if word.startswith("-") else read_cluster(word)
    except ShardwiseError:
        return None


def _without(command: str, name: str, *, has_value: bool) -> str:
    return re.sub(rf" --(?:no-)?{name}{r'[ =][^ ]+' if has_value else '(?= |$)'}", "", command)


def mending_commands(
    command: str, plan: Plan, change: VerifiedChange | None, *, assumed: AbstractSet[str] = frozenset()
) -> tuple[str, ...]:
    """The command with the first remedy, where words of a command say it, and a search of every layout."""
    found = searched(as_command(command, "plan"))
    return (found,) if change is None else tuple(filter(None, (changed_command(command, plan, change, assumed), found)))


def changed_command(command: str, plan: Plan, change: VerifiedChange, assumed: AbstractSet[str] = frozenset()) -> str:
    """The command that answers what was predicted for a change; empty where no words of a command say it.

    A question without a length assumes another one for adapters, and another batch with it: both are typed.
    """
    kept: Changes = ()
    if "seq_len" in assumed and "adapter" in dict(change.changes):
        kept = (("seq_len", change.plan.recipe.seq_len), ("global_batch_size", change.plan.global_batch_size))
    text = changes_text(merge(change.changes, kept))
    return retried(command, text, asked=plan.cluster, cluster=change.plan.cluster)
