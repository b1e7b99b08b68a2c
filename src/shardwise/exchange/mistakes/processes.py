"""Processes, nodes and launchers: GPUs that stand idle, worlds that do not match, hosts that never meet."""

from collections.abc import Iterator

from shardwise.exchange.mistakes.rule import Case, Conditions, Found
from shardwise.exchange.names import View
from shardwise.exchange.tools.others import batch_numbers

KIND = "distributed_type"
"""The key with which Accelerate's file says what starts."""
LAUNCH_ADDRESS = "SLURM_LAUNCH_NODE_IPADDR"
META_PIECES = {(5120, 40): 2, (6656, 60): 4, (8192, 80): 8}
"""Pieces of Meta's checkpoints, each a tensor-parallel rank, by width and layers (meta-llama/llama README)."""
SHARDED = ("use_torch_fsdp2", "use_megatron_fsdp")


def _machines(case: Case) -> tuple[int, int, str]:
    """Machines and processes of Accelerate, and where the processes stand."""
    machines = case.fact("num_machines", "accelerate") or case.fact("accelerate.num_machines", "launch")
    processes = case.fact("num_processes", "accelerate")
    numbers = [fact.value if fact and isinstance(fact.value, int) else 0 for fact in (machines, processes)]
    return numbers[0], numbers[1], processes.place if processes else ""


def _each_machine(case: Case) -> Iterator[Found]:
    machines, processes, place = _machines(case)
    gpus = next((batch_numbers(view)[1] for view in case.views("launch")), None) or 0
    if machines > 1 and processes and (processes < machines or processes == gpus):
        each = processes // machines
        yield Found(
            place,
            (
                f"num_processes is the total of all machines: {processes} over {machines} starts {each} on each"
                + (f", where {gpus} GPUs are" if gpus else "")
            ),
            f"num_processes: {machines * gpus}" if gpus else "num_processes: machines x GPUs of one machine",
        )


def _uneven_machines(case: Case) -> Iterator[Found]:
    machines, processes, place = _machines(case)
    if machines > 1 and processes > machines and processes % machines:
        yield Found(
            place,
            f"{processes} processes do not divide over {machines} machines; each must start the same number",
            f"num_processes: {processes // machines * machines}, with as many GPUs on every machine",
        )


def _idle_gpus(case: Case) -> Iterator[Found]:
    world = case.number("world_size")
    is_training = any(view.tool.name != "launch" for view in case.views())
    for view in case.views("launch") if is_training else ():
        nodes, gpus = batch_numbers(view)
        machines = _machines(case)[0]
        if nodes and gpus and 0 < world < nodes * gpus and not (machines > 1 and world == gpus):
            yield Found(
                case.place("world_size"),
                f"{nodes} nodes x {gpus} GPUs are asked for, {world} processes start: {nodes * gpus - world} GPUs idle",
                f"start {nodes * gpus} processes, or ask Slurm for {world} GPUs",
            )
    for view in case.views("accelerate"):
        asked = view.number("num_processes") or 1
        if view.text(KIND) == "no" and asked > 1 and not view.is_line:
            yield Found(
                view.by_key[KIND].place,
                f"one process starts where nothing is distributed, whatever num_processes says: {asked - 1} GPUs idle",
                "distributed_type: MULTI_GPU, or num_processes: 1",
            )
    runtime, job = case.fact("spec.mlPolicy.mpi.numProcPerNode", "kubernetes"), None
    for view in case.views("kubernetes"):
        job = next((fact for key, fact in view.by_key.items() if key.endswith("limits.nvidia.com/gpu")), job)
    if runtime and job and isinstance(job.value, int) and isinstance(runtime.value, int) and runtime.value < job.value:
        yield Found(
            runtime.place,
            f"each node is given {job.value} GPUs and starts {runtime.value} process",
            f"numProcPerNode: {job.value}, or nvidia.com/gpu: {runtime.value}",
        )


def _no_meeting(case: Case) -> Iterator[Found]:
    for view in case.views("launch"):
        for fact in view.by_key.values():
            if LAUNCH_ADDRESS in str(fact.value):
                yield Found(
                    fact.place,
                    "that variable is the host srun was typed on, often the login node, where nobody listens",
                    "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1):29500",
                )
    for view in case.views("kubernetes"):
        yield from _pods_that_never_meet(view)


def _pods_that_never_meet(view: View) -> Iterator[Found]:
    commands = [fact for key, fact in view.by_key.items() if key.endswith((".command", ".args"))]
    text = " ".join(str(fact.value) for fact in commands)
    pods = next((fact.value for key, fact in view.by_key.items() if key.endswith("template.spec.parallelism")), 1)
    if ("torchrun" in text or "torch.distributed" in text) and commands:
        is_jobset = view.text("kind") == "jobset"
        if is_jobset and isinstance(pods, int) and pods > 1 and "nnodes" not in text:
            yield Found(
                commands[0].place,
                f"without --nnodes each of the {pods} pods is a world of its own",
                f"torchrun --nnodes={pods} --node_rank=$JOB_COMPLETION_INDEX ...",
            )
        elif (
            "nnodes" in text
            and not any(word in text for word in ("node_rank", "node-rank", "rdzv"))
            and not any(key.startswith("spec.elasticPolicy") for key in view.by_key)  # the operator sets PET_RDZV_*
        ):
            yield Found(
                commands[0].place,
                "each pod calls itself node 0 with an address of its own",
                "--node_rank=${RANK} --master_addr=${MASTER_ADDR} --master_port=${MASTER_PORT}",
            )


def _too_many_tasks(case: Case) -> Iterator[Found]:
    for view in case.views("launch"):
        tasks = view.number("srun.ntasks_per_node") or view.number("sbatch.ntasks_per_node") or 1
        each = view.number("torchrun.nproc_per_node") or (2 if "accelerate.is_used" in view.by_key else 0)
        if tasks > 1 and each > 1 and "srun.is_used" in view.by_key:
            yield Found(
                view.document.file + ":--ntasks-per-node",
                f"{tasks} tasks a node each start a launcher that starts a process for every GPU",
                "--ntasks-per-node=1 with torchrun or accelerate launch",
            )


def _node_counts(case: Case) -> Iterator[Found]:
    for view in case.views("launch"):
        nodes, _ = batch_numbers(view)
        stated = view.number("torchrun.nnodes") or view.number("accelerate.num_machines")
        steps = [fact.value for fact in view.document.facts if fact.key == "srun.nodes"]  # one of several may start it
        if nodes and stated and nodes != stated and stated not in steps:
            yield Found(
                view.document.file + ":--nnodes",
                f"the launcher waits for {stated} nodes, Slurm gives {nodes}",
                "--nnodes $SLURM_NNODES",
            )


def _world_by_layout(case: Case) -> Iterator[Found]:
    for one in case.reading.contradictions:
        if one.first.field == "world_size" and not one.second.place.endswith(f":{KIND}"):
            numbers = sorted(int(str(claim.value)) for claim in (one.first, one.second))
            yield Found(
                one.second.place if "x" in one.second.place else one.first.place,
                f"the degrees multiply to {one.second.value}, the world is {one.first.value} ({one.first.place})",
                _degree_fix(case, numbers[0]),
            )


def _degree_fix(case: Case, world: int) -> str:
    ranks = case.number("tp") * case.number("cp") * case.number("pp")
    if any(case.views("torchtitan")):
        return "--parallelism.data_parallel_shard_degree -1"
    left = world // ranks if ranks and world % ranks == 0 else 0
    return f"dp: {left}" if left else f"degrees whose product is {world}"


def _model_parallel(case: Case) -> Iterator[Found]:
    ranks, world = case.number("tp") * case.number("cp") * case.number("pp"), case.number("world_size")
    if world and ranks and world % ranks:
        yield Found(
            case.place("world_size"),
            f"{world} processes are no multiple of tp x pp x cp = {ranks}",
            f"a multiple of {ranks} processes",
        )
    for view in case.views("launch"):
        tasks = (
            view.number("srun.ntasks") or view.number("srun.ntasks_per_node") or view.number("sbatch.ntasks_per_node")
        )
        if "srun.is_used" in view.by_key and not tasks and view.number("srun.nodes") == 1 and world == 1 and ranks <= 1:
            yield Found(
                view.document.file + ":srun",
                "srun starts one task, so the world is 1",
                "srun --ntasks-per-node=8, or torchrun on each node",
            )


def _hidden_file(case: Case) -> Iterator[Found]:
    used = case.fact("deepspeed.is_used", "launch")
    for view in case.views("llamafactory", "trl", "training-arguments"):
        named = view.by_key.get("argument_file")
        if used and named and view.is_line and "train.py" in view.document.program and len(view.by_key) == 1:
            yield Found(
                used.place,
                f"the deepspeed launcher puts --local_rank before {named.value}, so the file is never read",
                f"FORCE_TORCHRUN=1 NNODES=... NODE_RANK=... MASTER_ADDR=... llamafactory-cli train {named.value}",
            )


def _connections(case: Case) -> Iterator[Found]:
    fact = case.fact("env.CUDA_DEVICE_MAX_CONNECTIONS", "launch")
    if fact is None:
        return
    is_sharded = any(view.is_on(key) for view in case.views("megatron") for key in SHARDED)
    if is_sharded and fact.value == 1:
        yield Found(
            fact.place,
            "sharded data parallelism refuses to start with one connection, as copies would wait for kernels",
            "unset CUDA_DEVICE_MAX_CONNECTIONS",
        )
    elif (
        not is_sharded and fact.value != 1 and case.number("tp") * case.number("cp") > 1 and any(case.views("megatron"))
    ):
        yield Found(
            fact.place,
            f"tensor and context parallelism overlap with 1 connection only, here are {fact.value}",
            "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        )


def _checkpoint_pieces(case: Case) -> Iterator[Found]:
    for view in case.views("meta"):
        pieces = META_PIECES.get((view.number("dim") or 0, view.number("n_layers") or 0))
        world = case.number("world_size")
        if pieces and world and world != pieces:
            yield Found(
                case.place("world_size"),
                f"a checkpoint of this size comes in {pieces} pieces and wants {pieces} processes, not {world}",
                f"--nproc_per_node {pieces}",
            )


def _across_nodes(case: Case) -> Iterator[Found]:
    gpus = next((batch_numbers(view)[1] for view in case.views("launch")), None) or 0
    if case.cluster is not None:
        gpus = case.cluster.node.gpus_per_node
    if (
        gpus
        and case.number("tp") > gpus
        and (case.cluster is None or case.cluster.node.scale_up_domain_gpus < case.number("tp"))
    ):
        yield Found(
            case.place("tp"),
            f"tp {case.number('tp')} crosses nodes of {gpus} GPUs: every block waits for the network",
            f"tp {gpus}, and pipeline or data parallelism for the rest",
        )


def _said_twice(case: Case) -> Iterator[Found]:
    for view in case.views():
        first: dict[str, object] = {}
        for fact in view.document.facts if view.is_line and view.tool.name != "launch" else ():
            if fact.key in first and first[fact.key] != fact.value and view.tool.name_of(fact.key):
                yield Found(
                    fact.place,
                    f"{fact.key} is given twice, {first[fact.key]} and {fact.value}; the last one counts",
                    "drop one of both",
                )
            first.setdefault(fact.key, fact.value)


CONDITIONS: Conditions = (
    ("gpus-by-processes", _idle_gpus),
    ("tp-across-nodes", _across_nodes),
    ("option-twice", _said_twice),
    ("processes-per-machine", _each_machine),
    ("processes-not-divisible", _uneven_machines),
    ("no-rendezvous", _no_meeting),
    ("nodes-disagree", _node_counts),
    ("tasks-by-launcher", _too_many_tasks),
    ("world-by-layout", _world_by_layout),
    ("world-by-model-parallel", _model_parallel),
    ("launcher-hides-file", _hidden_file),
    ("environment", _connections),
    ("checkpoint-by-world", _checkpoint_pieces),
)
