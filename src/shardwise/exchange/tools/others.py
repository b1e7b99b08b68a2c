"""nanotron's YAML, Meta's params.json, job files of Kubernetes and SkyPilot, and the lines that start processes."""

from collections.abc import Iterator, Mapping

from shardwise.exchange.names import Claim, Readers, View
from shardwise.fields import Value

DTYPES: Mapping[str, Value] = {"bfloat16": "bf16", "float32": "fp32"}


def _nanotron(view: View) -> Iterator[Claim]:
    yield view.claim("engine", "nanotron", *view.by_key)
    sizes = [view.number(f"parallelism.{key}") for key in ("dp", "tp", "pp", "context_parallel_size")]
    if sizes[0] is not None:
        world = sizes[0]
        for size in sizes[1:]:
            world *= size or 1
        yield view.claim("world_size", world, "parallelism.dp")
    if view.text("model.dtype") in DTYPES:
        has_masters = view.is_on("optimizer.accumulate_grad_in_fp32")
        name = DTYPES[view.text("model.dtype")]
        yield view.claim("precision", "bf16-mixed" if name == "bf16" and has_masters else name, "model.dtype")


def _meta(view: View) -> Iterator[Claim]:
    """The model whose sizes these are, as the config of a Llama, by Meta's own rule for the width."""
    sizes = [view.number(key) for key in ("dim", "n_layers", "n_heads")]
    if None not in sizes and (view.number("vocab_size") or 0) > 0:
        yield view.claim("model", "params.json", "dim")


def gpus_in(text: str) -> int | None:
    """Return the number of GPUs that ``gpu:8``, ``gpu:h100:8`` or ``8`` asks for."""
    last = text.rpartition(":")[2]
    return int(last) if last.isdigit() and len(last) < 8 else None


def batch_numbers(view: View) -> tuple[int | None, int | None]:
    """Nodes and GPUs of a node that Slurm is asked for, on the batch lines or on the srun line."""
    nodes = gpus = None
    for section in ("sbatch", "srun"):
        nodes = view.number(f"{section}.nodes") or nodes
        for key in ("gres", "gpus_per_node"):
            gpus = gpus_in(view.text(f"{section}.{key}")) or gpus
    tasks, per_node = view.number("srun.ntasks"), view.number("srun.ntasks_per_node")
    if nodes is None and tasks and per_node and tasks % per_node == 0:
        nodes = tasks // per_node
    return nodes, gpus


OTHER_STARTERS = ("accelerate.is_used", "deepspeed.is_used", "srun.starts_script")
"""Facts of a script in which srun starts another launcher once on each node, and that one starts the processes."""
ONE_OF_MANY = ("srun.nodelist", "srun.w")
"""Options of srun with which a loop starts a step on each node."""


def _launch(view: View) -> Iterator[Claim]:
    nodes, gpus = batch_numbers(view)
    if gpus and nodes:
        yield view.claim("num_nodes", nodes, "sbatch.nodes", "srun.nodes", "srun.ntasks")
    if "torchrun.is_used" in view.by_key:
        per_node = view.value("torchrun.nproc_per_node")
        each = per_node if isinstance(per_node, int) else gpus if per_node in ("gpu", "auto") else None
        machines = view.value("torchrun.nnodes")
        count = 1 if machines is None else machines if isinstance(machines, int) else nodes
        is_told = {"torchrun.nnodes", "torchrun.more"} & set(view.by_key) or "kubernetes" in view.others  # PET_NNODES
        if per_node is None and not is_told:
            each = 1
        if isinstance(count, int) and isinstance(each, int):
            yield view.claim("world_size", count * each, "torchrun.nproc_per_node", "torchrun.is_used")
    elif "accelerate.num_processes" in view.by_key and view.number("accelerate.num_processes"):
        yield view.claim("world_size", view.number("accelerate.num_processes"), "accelerate.num_processes")
    elif processes := _deepspeed_processes(view):
        yield view.claim("world_size", processes, "deepspeed.num_gpus", "deepspeed.include", "deepspeed.i")
    elif "srun.is_used" in view.by_key and not {*OTHER_STARTERS, *ONE_OF_MANY} & set(view.by_key):
        per_node = view.number("srun.ntasks_per_node") or view.number("sbatch.ntasks_per_node")
        total = view.number("srun.ntasks") or view.number("sbatch.ntasks")
        if total or (nodes and per_node):
            world = total or (nodes or 0) * (per_node or 0)
            yield view.claim("world_size", world, "srun.ntasks", "sbatch.ntasks_per_node", "srun.is_used")
        elif nodes:
            yield view.claim("world_size", nodes, "srun.nodes", "sbatch.nodes")


def _deepspeed_processes(view: View) -> int | None:
    """Processes on all nodes, by their number or by the cards that are named, such as ``a:0,1@b:0,1``."""
    each = view.number("deepspeed.num_gpus")
    if each:
        return (view.number("deepspeed.num_nodes") or 1) * each
    named = view.text("deepspeed.include") or view.text("deepspeed.i")
    cards = [host.partition(":")[2] for host in named.split("@")]
    return sum(len(one.split(",")) for one in cards) if all(cards) and "$" not in named else None


def _kubernetes(view: View) -> Iterator[Claim]:
    """Pods times the processes of each. A PyTorchJob's WORLD_SIZE counts pods, not processes."""
    kind = view.text("kind")
    if kind == "trainjob":
        yield from _train_job(view)
        return
    if kind.endswith("trainingruntime"):
        nodes, each = (view.number(f"spec.mlPolicy.{key}") for key in ("numNodes", "mpi.numProcPerNode"))
        if nodes and "spec.mlPolicy.mpi" in view.sections:
            yield view.claim("world_size", nodes * (each or 1), "spec.mlPolicy.mpi.numProcPerNode", "kind")
        return
    processes = _processes_of_a_pod(view)
    if kind == "jobset":
        jobs = "spec.replicatedJobs"
        shown = [key for key in view.by_key if key.startswith(jobs) and key.endswith(".spec.parallelism")]
        pods = sum(
            (view.number(key) or 0) * (view.number(key.replace("template.spec.parallelism", "replicas")) or 1)
            for key in shown
        )
        if pods and processes and "nnodes" in _commands(view):
            yield view.claim("world_size", pods * processes, *shown)
        return
    facts = [fact for key, fact in view.by_key.items() if key.endswith(("Master.replicas", "Worker.replicas"))]
    if facts and processes and all(isinstance(fact.value, int) for fact in facts):
        total = sum(int(str(fact.value)) for fact in facts)
        yield Claim(field="world_size", value=total * processes, place=facts[0].place)


def _train_job(view: View) -> Iterator[Claim]:
    """Nodes times the processes of each: as many as GPUs, unless it says so or mpirun starts them."""
    key = "spec.trainer.numNodes"
    limits = ("limits", "requests")
    gpus = [view.number(f"spec.trainer.resourcesPerNode.{limit}.nvidia.com/gpu") for limit in limits]
    each = view.number("spec.trainer.numProcPerNode") or next((count for count in gpus if count), None)
    nodes = view.number(key) or 1
    if each and "mpirun" not in view.text("spec.trainer.command"):
        yield view.claim("world_size", nodes * each, key, "kind")


def _commands(view: View) -> str:
    return " ".join(str(fact.value) for key, fact in view.by_key.items() if ".command" in key or ".args" in key)


def _processes_of_a_pod(view: View) -> int | None:
    """Processes that torchrun starts in every pod; one where none of its options says so."""
    each = _commands(view).replace(",", " ").replace("=", " ").split()
    options = [word for word in ("--nproc_per_node", "--nproc-per-node") if word in each]
    return gpus_in(each[each.index(options[0]) + 1]) if options and each[-1] != options[0] else 1


def _skypilot(view: View) -> Iterator[Claim]:
    named = view.value("resources.accelerators")
    if isinstance(named, str):
        count = gpus_in(named) or 1  # a name without a count is one card
        nodes = view.number("num_nodes") or 1
        yield view.claim("world_size", nodes * count, "resources.accelerators")


READERS: Readers = {
    "nanotron": _nanotron,
    "meta": _meta,
    "launch": _launch,
    "kubernetes": _kubernetes,
    "skypilot": _skypilot,
}
