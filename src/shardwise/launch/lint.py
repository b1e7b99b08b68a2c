"""Looks for settings that make a run fail, hang or crawl, before it starts. Every finding says what to type instead.

A rule is a function of the plan and of what is here; it starts no process and imports no torch.
"""

from collections.abc import Callable, Iterable, Iterator

from shardwise.errors import ShardwiseError
from shardwise.families.build import contradicting_class, two_names_sentence
from shardwise.families.reading import written_config
from shardwise.launch.lint_case import Case, LintFinding, Severity, version_numbers
from shardwise.launch.surroundings import Surroundings
from shardwise.plan import Plan
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.units import GIB, MIB, format_gb, format_gib

__all__ = [
    "RULES",
    "SurroundingsError",
    "errors_of",
    "is_of_packages",
    "lint",
    "refused",
    "require_no_errors",
    "warnings_of",
]

ORDER: tuple[Severity, ...] = ("error", "warning", "note")
OFF = frozenset({"0", "false", "no", "off"})
MISSING, OLD, BROKEN = "-missing", "-old", "-broken"
PACKAGES = ("torch", "transformers", "safetensors")
TRAIN_EXTRA = "pip install 'shardwise[train]'"
MIN_SHARED_MEMORY_BYTES = 1 * GIB
"""NCCL moves data between the processes of a host through /dev/shm; containers get 64 MiB unless told otherwise."""
MIN_LOCKED_BYTES = 64 * MIB
MIN_OPEN_FILES = 4096
LEAST_OPEN_FILES = 64
"""Open files of torchrun, its queues and a rank on one machine; two ranks ran with 72 and failed with 56."""
CHECKPOINT_BYTES_PER_PARAM = 12
"""fp32 weights and two fp32 moments."""

Rule = Callable[[Case], Iterator[LintFinding]]


class SurroundingsError(ShardwiseError):
    """A machine or a shell on which the run cannot work."""


def lint(
    plan: Plan,
    here: Surroundings,
    *,
    is_on_gpu: bool,
    is_device_asked: bool = True,
    saves_states: bool = False,
    packages: tuple[str, ...] = ("torch",),
) -> tuple[LintFinding, ...]:
    """Findings about running a plan here, with ranks that import some packages, gravest first."""
    case = Case(
        plan=plan,
        here=here,
        is_on_gpu=is_on_gpu,
        is_device_asked=is_device_asked,
        saves_states=saves_states,
        packages=packages,
    )
    found = [finding for rule in RULES for finding in rule(case)]
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.severity)))


def refused(errors: Iterable[ShardwiseError]) -> tuple[LintFinding, ...]:
    """The refusals of a run as findings."""
    return tuple(LintFinding(rule=error.code, severity="error", claim=error.message, fix=error.fix) for error in errors)


def errors_of(findings: tuple[LintFinding, ...]) -> tuple[LintFinding, ...]:
    """Findings that make the run impossible."""
    return tuple(finding for finding in findings if finding.severity == "error")


def warnings_of(findings: tuple[LintFinding, ...]) -> tuple[LintFinding, ...]:
    """Findings that make the run slow or may make it hang."""
    return tuple(finding for finding in findings if finding.severity == "warning")


def require_no_errors(findings: tuple[LintFinding, ...]) -> None:
    """Return when nothing was found that makes the run impossible.

    Raises:
        SurroundingsError: the first such finding, and how many more there are.
    """
    errors = errors_of(findings)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise SurroundingsError(errors[0].claim + more, code="train-surroundings", fix=errors[0].fix)


def is_of_packages(finding: LintFinding) -> bool:
    """Whether it is about what ranks import and not about the machine."""
    return finding.rule.endswith(BROKEN) or finding.rule in {name + end for name in PACKAGES for end in (MISSING, OLD)}


def packages_are_there(case: Case) -> Iterator[LintFinding]:
    """Packages that ranks import are installed; torch 2.9 is the oldest with every interface that is used."""
    for name in case.packages:
        if name not in case.here.versions:
            yield LintFinding(
                rule=f"{name}{MISSING}",
                severity="error",
                claim=f"{name} is not installed",
                fix=TRAIN_EXTRA,
            )
    if case.torch_before(2, 9):
        yield LintFinding(
            rule=f"torch{OLD}",
            severity="error",
            claim=f"torch {case.here.versions['torch']} is older than 2.9",
            fix="pip install -U torch",
        )


def model_is_named_once(case: Case) -> Iterator[LintFinding]:
    """transformers builds by ``model_type``, and what serves an exported model may go by ``architectures``."""
    other = contradicting_class(written_config(case.plan.model))
    if other:
        yield LintFinding(
            rule="model-type",
            severity="warning",
            claim=two_names_sentence(other, case.plan.model.model_type),
            fix="correct model_type or architectures in config.json",
        )


def devices_are_there(case: Case) -> Iterator[LintFinding]:
    """There is one GPU for every process; a plan for GPUs trains on CPUs only where somebody asked for it."""
    if not case.is_on_gpu and not case.is_device_asked and not case.plan.cluster.runs_on_cpu:
        cluster = case.plan.cluster
        yield LintFinding(
            rule="gpus-missing",
            severity="error",
            claim=f"the plan is for {cluster.num_gpus:,} x {cluster.gpu.name}, and no GPU can be seen{_hidden(case)}",
            fix="start it where its GPUs are, or add --device cpu to train it on the CPUs of this machine",
        )
    if not case.is_on_gpu or case.here.num_gpus >= case.num_local_ranks:
        return
    yield LintFinding(
        rule="gpus-missing",
        severity="error",
        claim=f"{_wanted_gpus(case.num_local_ranks)}, and {case.here.num_gpus} can be seen{_hidden(case)}",
        fix="unset CUDA_VISIBLE_DEVICES, or plan for fewer GPUs",
    )


def _hidden(case: Case) -> str:
    visible = case.variable("CUDA_VISIBLE_DEVICES")
    return f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""


def _wanted_gpus(num_ranks: int) -> str:
    return "one process wants a GPU" if num_ranks == 1 else f"{num_ranks} processes want a GPU each"


def processes_fit_the_cores(case: Case) -> Iterator[LintFinding]:
    """Every process starts OMP_NUM_THREADS threads; more threads than cores wait for each other."""
    text = case.variable("OMP_NUM_THREADS")
    num_threads = int(text) if text.isdigit() else 0
    if num_threads * case.num_local_ranks > case.here.num_cores and num_threads > 1:
        best = max(1, case.here.num_cores // case.num_local_ranks)
        yield LintFinding(
            rule="threads",
            severity="warning",
            claim=f"{case.num_local_ranks} processes of {num_threads} threads share {case.here.num_cores} cores",
            fix=f"export OMP_NUM_THREADS={best}",
        )


def rendezvous_can_restart(case: Case) -> Iterator[LintFinding]:
    """A store shared with the agent keeps keys of dead workers: restarted ones hang (pytorch/pytorch#135712)."""
    if case.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE").lower() in OFF:
        yield LintFinding(
            rule="rendezvous-store",
            severity="warning",
            claim="TORCH_DISABLE_SHARE_RDZV_TCP_STORE is off: workers that torchrun restarts may hang or crash",
            fix="export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        )


def nodes_can_meet(case: Case) -> Iterator[LintFinding]:
    """The processes of several machines can find each other."""
    if case.plan.cluster.num_nodes == 1:
        return
    address = case.variable("MASTER_ADDR")
    if address in ("localhost", "127.0.0.1", "::1"):
        yield LintFinding(
            rule="rendezvous-address",
            severity="error",
            claim=f"MASTER_ADDR={address} means another machine on each of {case.plan.cluster.num_nodes} nodes",
            fix="export MASTER_ADDR=<name of the first node>",
        )
    if case.here.host_address.startswith("127."):
        yield LintFinding(
            rule="host-name",
            severity="warning",
            claim=f"this machine's name resolves to {case.here.host_address}, which gloo would tell to other machines",
            fix="export GLOO_SOCKET_IFNAME=<the interface of the cluster network>, or correct /etc/hosts",
        )
    if case.variable("NCCL_IB_DISABLE") == "1":
        yield LintFinding(
            rule="infiniband-off",
            severity="warning",
            claim="NCCL_IB_DISABLE=1: traffic between nodes goes through TCP",
            fix="unset NCCL_IB_DISABLE",
        )
    locked = case.here.max_locked_bytes
    if case.is_on_gpu and locked is not None and locked < MIN_LOCKED_BYTES:
        yield LintFinding(
            rule="locked-memory",
            severity="warning",
            claim=f"only {format_gib(locked)} may be locked in memory; InfiniBand registers its buffers there",
            fix="ulimit -l unlimited",
        )


def interfaces_exist(case: Case) -> Iterator[LintFinding]:
    """Named network interfaces must be there; NCCL takes prefixes, exclusions and exact names."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        wanted = case.variable(name)
        if not wanted or wanted.startswith("^") or not case.here.interfaces:
            continue
        prefixes = [part.strip().removeprefix("=") for part in wanted.split(",") if part.strip()]
        if not any(known.startswith(prefix) for prefix in prefixes for known in case.here.interfaces):
            yield LintFinding(
                rule="interface-missing",
                severity="error",
                claim=f"{name}={wanted}, but the interfaces here are {', '.join(case.here.interfaces)}",
                fix=f"export {name}={next((i for i in case.here.interfaces if i != 'lo'), 'lo')}",
            )


def work_queues_fit_the_layout(case: Case) -> Iterator[LintFinding]:
    """How many hardware queues a process has decides what may overlap.

    With one queue, work starts in the order it was issued: Megatron's tensor parallelism wants that, and FSDP2's
    reduce-scatters then run after the computation they should hide behind (verl-omni#421; torchtitan#1147 and #4508
    recommend as many as there are streams).
    """
    if not case.is_on_gpu:
        return
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if case.variable(name) == "1" and (case.divides_states or case.plan.layout.pp > 1):
        yield LintFinding(
            rule="max-connections",
            severity="warning",
            claim=f"{name}=1 makes reduce-scatters and transfers wait for computation "
            f"(dp_shard={case.plan.layout.dp_shard}, pp={case.plan.layout.pp})",
            fix="export CUDA_DEVICE_MAX_CONNECTIONS=32"
            if case.plan.layout.tp > 1
            else "unset CUDA_DEVICE_MAX_CONNECTIONS",
        )


def allocator_is_set_once(case: Case) -> Iterator[LintFinding]:
    """The settings of the caching allocator, and contradictions in them."""
    if not case.is_on_gpu:
        return
    general, cuda = case.variable("PYTORCH_ALLOC_CONF"), case.variable("PYTORCH_CUDA_ALLOC_CONF")
    if general and cuda and general != cuda:
        yield LintFinding(
            rule="allocator-twice",
            severity="warning",
            claim=f"PYTORCH_ALLOC_CONF={general} and PYTORCH_CUDA_ALLOC_CONF={cuda} differ, and only one is read",
            fix="unset PYTORCH_CUDA_ALLOC_CONF",
        )
    both = f"{general},{cuda}".lower()
    if "expandable_segments:true" in both and "cudamallocasync" in both:
        yield LintFinding(
            rule="allocator-backend",
            severity="warning",
            claim="expandable segments are a feature of torch's own allocator, and cudaMallocAsync replaces it",
            fix="export PYTORCH_ALLOC_CONF=expandable_segments:True",
        )
    if "expandable_segments:false" in both:
        yield LintFinding(
            rule="fragmentation",
            severity="note",
            claim="expandable segments are off: blocks freed by tensors of other sizes cannot be joined",
            fix="export PYTORCH_ALLOC_CONF=expandable_segments:True",
        )
    if case.variable("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        yield LintFinding(
            rule="allocator-off",
            severity="warning",
            claim="PYTORCH_NO_CUDA_MEMORY_CACHING asks the driver for every tensor, which stops the GPU each time",
            fix="unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        )


def nothing_slows_on_purpose(case: Case) -> Iterator[LintFinding]:
    """Settings for looking at a fault that were left on."""
    slow = (
        ("CUDA_LAUNCH_BLOCKING", "every kernel is waited for"),
        ("NCCL_P2P_DISABLE", "GPUs of a host talk through host memory instead of NVLink"),
        ("NCCL_SHM_DISABLE", "GPUs of a host talk through the network"),
    )
    for name, effect in slow:
        if case.is_on_gpu and case.variable(name) == "1":
            yield LintFinding(rule="left-on", severity="warning", claim=f"{name}=1: {effect}", fix=f"unset {name}")
    if case.variable("TORCH_DISTRIBUTED_DEBUG").upper() == "DETAIL":
        yield LintFinding(
            rule="left-on",
            severity="warning",
            claim="TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective among all ranks before it runs",
            fix="unset TORCH_DISTRIBUTED_DEBUG",
        )
    disabled = [name for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE") if case.variable(name) == "1"]
    if disabled and case.plan.recipe.compile:
        yield LintFinding(
            rule="compile-off",
            severity="warning",
            claim=f"{disabled[0]}=1, but the plan compiles and was predicted so",
            fix=f"unset {disabled[0]}",
        )


def hangs_are_noticed(case: Case) -> Iterator[LintFinding]:
    """NCCL's watchdog ends ranks whose collectives time out, unless it was told not to."""
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    off = next((name for name in names if case.variable(name) == "0"), None)
    if case.is_on_gpu and off is not None:
        yield LintFinding(
            rule="watchdog-off",
            severity="warning",
            claim=f"{off}=0: a collective that times out would hang for ever",
            fix=f"unset {off}",
        )


def the_host_has_room(case: Case) -> Iterator[LintFinding]:
    """The host has the shared memory, open files and disk that a run needs."""
    shared = case.here.shared_memory_bytes
    if case.is_on_gpu and case.num_local_ranks > 1 and shared is not None and shared < MIN_SHARED_MEMORY_BYTES:
        yield LintFinding(
            rule="shared-memory",
            severity="warning",
            claim=f"/dev/shm has {format_gib(shared)}; NCCL needs it between the GPUs of a host",
            fix="start the container with more shared memory, such as 16 GiB",
        )
    files = case.here.max_open_files
    if files is not None and files < min(MIN_OPEN_FILES, 64 * case.plan.layout.world_size):
        yield LintFinding(
            rule="open-files",
            severity="error" if files < LEAST_OPEN_FILES + 8 * case.plan.layout.world_size else "warning",
            claim=f"only {files} files may be open, and every rank keeps connections to {case.plan.layout.world_size}",
            fix=f"ulimit -n {MIN_OPEN_FILES}",
        )
    needed = CHECKPOINT_BYTES_PER_PARAM * case.plan.model.num_params
    free = case.here.free_disk_bytes
    if case.saves_states and free is not None and free < needed:
        yield LintFinding(
            rule="disk",
            severity="warning",
            claim=f"one checkpoint takes {format_gb(needed)}, and {format_gb(free)} are free where the run is written",
            fix="write the run to a larger disk",
        )


def the_compiler_is_there(case: Case) -> Iterator[LintFinding]:
    """torch.compile writes Triton for GPUs and C++ for CPUs."""
    if not case.plan.recipe.compile:
        return
    if case.is_on_gpu and "torch" in case.here.versions and "triton" not in case.here.versions:
        yield LintFinding(
            rule="triton-missing",
            severity="error",
            claim="the plan compiles, and triton, which compiled code is written in, is not installed",
            fix="pip install triton, or set compile to false in the plan",
        )
    if not case.here.has_compiler:
        yield LintFinding(
            rule="compiler-missing",
            severity="error" if not case.is_on_gpu else "warning",
            claim="the plan compiles, and there is no C++ compiler on PATH",
            fix="apt-get install g++, or set compile to false in the plan",
        )


def versions_go_together(case: Case) -> Iterator[LintFinding]:
    """No two versions are known to fail together."""
    layout, versions = case.plan.layout, case.here.versions
    if (
        not case.is_on_gpu
        and SCHEDULE_KINDS[layout.schedule].doubles_chunks
        and layout.pp > 1
        and case.torch_before(2, 12)
    ):
        # Seen with 2.11 and not with 2.13: stages of one rank send to themselves, which gloo refused.
        yield LintFinding(
            rule="schedule-on-gloo",
            severity="error",
            claim=f"{layout.schedule} sends from a rank to itself, which gloo of torch {versions['torch']} cannot",
            fix="pip install -U torch, or set schedule to interleaved",
        )
    transformers = version_numbers(versions.get("transformers", ""))
    if transformers and transformers < (5,):
        yield LintFinding(
            rule=f"transformers{OLD}",
            severity="error",
            claim=f"transformers {versions['transformers']} is older than 5, whose model code the runtime reads",
            fix="pip install 'transformers>=5'",
        )
    if case.is_on_gpu and versions.get("torch", "").endswith("+cpu"):
        yield LintFinding(
            rule="torch-cpu",
            severity="error",
            claim=f"torch {versions['torch']} was built without CUDA",
            fix="install a CUDA build of torch, or run on CPUs",
        )


def all_linear_means_what_it_says(case: Case) -> Iterator[LintFinding]:
    """Stacked experts are no matrix that an adapter could stand beside."""
    recipe = case.plan.recipe
    if recipe.adapter != "none" and recipe.lora_targets == "all-linear" and case.plan.model.is_moe:
        yield LintFinding(
            rule="experts-not-adapted",
            severity="warning",
            claim="lora_targets=all-linear adapts no experts, which stay as they are, but the other matrices of blocks",
            fix="set lora_targets to attention where nothing else is meant",
        )


def ranks_may_finish_saving(case: Case) -> Iterator[LintFinding]:
    """A scheduler signals torchrun too, which kills its ranks half a minute later (pytorch/pytorch#119856)."""
    if case.saves_states and not case.here.torchrun_can_wait:
        yield LintFinding(
            rule="save-cut-short",
            severity="note",
            claim=f"torchrun of torch {case.here.versions.get('torch', '')} kills ranks 30 s after a SIGTERM that it "
            "gets itself, as from Slurm or through run.sh: a longer save is cut",
            fix="signal the train command or the ranks alone (their ids are in ranks/), or pip install -U torch",
        )


RULES: tuple[Rule, ...] = (
    packages_are_there,
    versions_go_together,
    model_is_named_once,
    devices_are_there,
    nodes_can_meet,
    interfaces_exist,
    rendezvous_can_restart,
    work_queues_fit_the_layout,
    allocator_is_set_once,
    hangs_are_noticed,
    nothing_slows_on_purpose,
    processes_fit_the_cores,
    the_host_has_room,
    the_compiler_is_there,
    all_linear_means_what_it_says,
    ranks_may_finish_saving,
)
