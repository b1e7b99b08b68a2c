"""Every reader of files from outside, each with a good file and what is done with it: the command, or the function."""

import gzip
import json
import pickle
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from calibrations import calibration, tables, timed_core
from damage import damaged_bytes, damaged_gzip, damaged_json, damaged_pickle, damaged_safetensors, damaged_text
from measure.made_up_traces import collective, kernel, mark, trace_text
from shardwise.calibration import BlockPoint, ProductPoint, Residual, TablesPoint, TimedBytes
from shardwise.calibration_file import calibration_object
from shardwise.cli.main import main
from shardwise.plan_file import read_plan
from shardwise.plan_file.read import read_numbered_plans
from shardwise.predict import predict
from shardwise.rules import find_errors
from shardwise.train.checkpoint.folder import COMPLETE, CheckpointFolder
from shardwise.train.checkpoint.origin import FACTS, origin_facts, require_continuable
from shardwise.train.data.documents import read_rows
from shardwise.train.data.examples import example_of
from shardwise.train.data.indexed_tokens import HEADER, MAGIC, read_indexed_tokens
from shardwise.train.failure.diagnose import diagnose
from shardwise.train.failure.flight_recorder import num_collectives, waiting_collective
from shardwise.train.pretrained.files import files_by_tensor, require_whole
from train.models import make_job

LOGS = Path(__file__).parent / "measure" / "data"
CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512},
    **{"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000},
    **{"rms_norm_eps": 1e-5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "max_position_embeddings": 512},
}
PLAN = {
    "model": CONFIG,
    "cluster": {"gpu": "h100-sxm", "gpus_per_node": 2, "num_nodes": 1},
    "recipe": {"seq_len": 128, "global_batch_size": 8, "precision": "bf16-mixed", "compile": False},
    "layout": {"dp_shard": 2},
}
CLUSTER = {
    "gpu": {"name": "own", "based_on": "h100-sxm", "memory_gib": 40, "tdp_w": 350, "scale_up_gb_per_s": 100},
    **{"gpus_per_node": 4, "num_nodes": 2, "network_gbit_per_s_per_node": 400, "usd_per_gpu_hour": 2.5},
}
STEPS = [
    {"step": step, "loss": 2.5, "gradient_norm": 1.5, "step_s": 0.5, "tokens_per_s_per_gpu": 900.0} for step in (1, 2)
]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A kind of file, and who reads it."""

    name: str
    file: str
    content: bytes
    damage: Callable
    read: Callable
    """Called with the file; anything but a refusal of ours that leaves it is a fault."""


def command(*words):
    """What runs a command in which ``FILE`` stands for the file and ``PLAN`` for a plan beside it."""

    def read(path):
        given = [
            str(path) if word == "FILE" else str(path.parent / "good-plan.json") if word == "PLAN" else word
            for word in words
        ]
        code = main(given)
        assert code in (0, 2, 3), f"{words} ended with {code}"

    return read


def predicted(**part):
    """Predicts the plan in which the file stands for a part."""

    def read(path):
        name, place = next(iter(part.items()))
        plan = read_plan({**PLAN, name: place(path)})
        if not find_errors(plan):
            predict(plan)

    return read


def _snapshot():
    frames = [{"filename": "/a/train.py", "name": "forward", "line": 3}]
    events = [
        {"action": action, "addr": 512 * address, "size": 512, "stream": 0, "frames": frames}
        for action, address in (("segment_alloc", 1), ("alloc", 1), ("alloc", 2), ("free_requested", 1), ("oom", 0))
    ]
    block = {"state": "active_allocated", "size": 512, "requested_size": 500, "address": 512, "frames": frames}
    segment = {
        "device": 0,
        "address": 512,
        "total_size": 2048,
        "stream": 0,
        "blocks": [block, {**block, "state": "inactive"}],
    }
    return pickle.dumps({"segments": [segment], "device_traces": [events, []]})


def _trace(step_us=1000):
    events = []
    for step in range(3):
        at = step * step_us
        events += [mark(f"ProfilerStep#{step}", at, at + step_us), *kernel("gemm", at + 10, at + 400, launch=at + 5)]
        events += collective(
            *("ncclDevKernel_AllGather", at + 300, at + 600),
            **{"launch": at + 6, "word": "_allgather_base", "elements": 1 << 20, "size": 2, "dtype": "BFloat16"},
            **{"description": "dp", "ranks": "[0, 1]"},
        )
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 100, "ts": at + 4, "dur": 9}
            | {"args": {"External id": step, "Input Dims": [[64, 32], [32, 16]]}}
        )
    return trace_text(events).encode()


def _measurement():
    sample = {"forward": 0.1, "backward": 0.2, "optimizer": 0.05}
    family = {"kind": "all_gather", "num_calls": 12, "work_s": 0.1, "exposed_s": 0.01}
    parts = {"parameters": 1 << 20, "gradients": 1 << 20, "optimizer": 2 << 20, "activations": 1 << 18}
    peaks = {"peak_allocated_bytes": 5 << 20, "peak_reserved_bytes": 6 << 20, "components_bytes": parts}
    time = {"num_steps_measured": 5, "step_s": 0.4, "components_s": sample, "communication": [family]}
    where = {"device": "NVIDIA H100 80GB HBM3", "versions": {"torch": "2.11"}}
    return json.dumps({"memory": peaks, "time": time, "environment": where, "steps": STEPS}).encode()


def _calibration():
    sizes = {"hidden_size": 256, "dtype": "bf16"}
    block = {"intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
    found = calibration(
        products=tuple(
            ProductPoint(product_pass=name, dtype="bf16", m=1024, n=256, k=512, duration_s=2e-5)
            for name in ("forward", "dgrad", "wgrad")
        ),
        attention=(timed_core(forward_s=1e-3, backward_s=3e-3),),
        moves=(TimedBytes(num_bytes=1 << 20, duration_s=1e-6), TimedBytes(num_bytes=1 << 26, duration_s=5e-5)),
        optimizer=(TimedBytes(num_bytes=1 << 24, duration_s=2e-5),),
        collectives=tables(bytes_per_s=3e11)[:6],
        blocks=tuple(
            BlockPoint(
                **sizes, **block, seq_len=128, num_sequences=4, is_sharded=sharded, forward_s=1e-3, backward_s=2e-3
            )
            for sharded in (False, True)
        ),
        tables=(TablesPoint(**sizes, vocab_size=1000, num_tokens=512, duration_s=1e-3),),
        residuals=(Residual(name="compute", ratio=1.1, num_runs=3),),
        **{"kernel_launch_s": 4e-6, "overlap_slowdown_ratio": 1.2, "meeting_s": 1e-5},
        **{"host_to_device_bytes_per_s": 5e10, "device_to_host_bytes_per_s": 5e10, "disk_write_bytes_per_s": 1e9},
    )
    return json.dumps(calibration_object(found)).encode()


def _weights():
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(24)


def _index_of_tokens():
    return HEADER.pack(MAGIC, 1, 8, 2, 3) + struct.pack("<2i2q3q", 3, 5, 0, 6, 0, 1, 2)


def read_tokens(path):
    path.with_name("tokens.bin").write_bytes(bytes(16))
    found = read_indexed_tokens(path.with_suffix(""))
    assert found.document_starts[-1] <= found.num_tokens


def resume(path):
    """Asks whether a job can go on from the checkpoint that the file describes."""
    folder = path.parent / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    states = CheckpointFolder(folder)
    unfinished = states.begin(1)
    (unfinished / ".metadata").write_bytes(b"made up")
    (unfinished / FACTS).write_bytes(path.read_bytes())
    states.publish(1)
    if path.name == COMPLETE:
        (folder / "step-00000001" / COMPLETE).write_bytes(path.read_bytes())
    job = make_job()
    require_continuable(replace(job, checkpoint=replace(job.checkpoint, resume_from=str(folder))))


def read_flight_recorder(path):
    num_collectives(path)
    waiting_collective(path)


def read_weights(path):
    require_whole(path.parent)
    files_by_tensor(path.parent)


RECORDER = {
    "entries": [
        {"state": "scheduled", "profiling_name": "nccl:all_reduce", "input_sizes": [[4, 4]], "collective_seq_id": 3}
    ]
}
STATE = {"best_metric": None, "step": 4, "log_history": [{"loss": 2.5, "step": 2}, {"train_runtime": 9.0, "step": 4}]}
STATE["log_history"][1] |= {"train_steps_per_second": 2.0, "train_samples_per_second": 16.0}
LIGHTNING = b"epoch,step,train_loss,device/samples_per_sec,device/batches_per_sec\n0,10,2.5,,\n0,20,,64.0,4.0\n"
SMI = b"timestamp, name, memory.used [MiB]\nx, NVIDIA H100, 40000 MiB\ny, NVIDIA H100, 70000 MiB\n"
DCGM = b'DCGM_FI_DEV_FB_USED{gpu="0"} 69000\nDCGM_FI_DEV_FB_USED{gpu="1"} 7e4\n'
DMON = b"#Entity   GPUTL     FBUSD\nID\nGPU 0     98        69000\nGPU 1     97        70000\n"
OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    b"GPU 0 has a total capacity of 79.10 GiB of which 1.25 GiB is free. "
    b"Of the allocated memory 75.10 GiB is allocated by PyTorch, "
    b"and 1.20 GiB is reserved by PyTorch but unallocated.\n"
)
TOML = (
    b'gpu = "h100-sxm"\ngpus_per_node = 4\nnum_nodes = 2\nnetwork_gbit_per_s_per_node = 400\nusd_per_gpu_hour = 2.5\n'
)
YAML = b"""model: llama-3.2-1b
cluster: 8xh100-sxm
recipe:
  seq_len: 4096
  global_batch_size: 16
layout:
  dp_shard: 8
"""
RECONCILE = command("reconcile", "FILE", "--plan", "PLAN")
LOG_FILES = {
    **{f"log of {path.stem}": path.read_bytes() for path in sorted(LOGS.glob("*.log"))},
    "log of nvidia-smi": SMI,
    "log of dcgm": DCGM,
    "log of dcgmi dmon": DMON,
}


def as_json(document):
    return json.dumps(document).encode()


def lines(*documents):
    return "\n".join(map(json.dumps, documents)).encode()


READERS = (
    Reader(
        name="plan",
        file="plan.json",
        content=as_json(PLAN),
        damage=damaged_json,
        read=command("predict", "FILE"),
    ),
    Reader(name="plan in YAML", file="plan.yaml", content=YAML, damage=damaged_text, read=read_plan),
    Reader(
        name="plans",
        file="plans.jsonl",
        content=lines(PLAN, PLAN),
        damage=damaged_json,
        read=lambda path: [answer for _, answer in read_numbered_plans(path)],
    ),
    Reader(
        name="config",
        file="config.json",
        content=as_json(CONFIG),
        damage=damaged_json,
        read=predicted(model=str),
    ),
    Reader(
        name="cluster",
        file="own.json",
        content=as_json(CLUSTER),
        damage=damaged_json,
        read=predicted(cluster=str),
    ),
    Reader(
        name="cluster in TOML",
        file="own.toml",
        content=TOML,
        damage=damaged_text,
        read=predicted(cluster=str),
    ),
    Reader(
        name="measurement",
        file="measurement.json",
        content=_measurement(),
        damage=damaged_json,
        read=RECONCILE,
    ),
    Reader(
        name="measurement learned from",
        file="measurement.json",
        content=_measurement(),
        damage=damaged_json,
        read=command("reconcile", "FILE", "--plan", "PLAN", "--json", "--force", "--out", "/dev/null"),
    ),
    Reader(
        name="calibration",
        file="calibration.json",
        content=_calibration(),
        damage=damaged_json,
        read=command("predict", "PLAN", "--calibration", "FILE"),
    ),
    Reader(
        name="snapshot",
        file="rank0.pickle",
        content=_snapshot(),
        damage=damaged_pickle,
        read=command("profile", "FILE"),
    ),
    Reader(
        name="snapshot beside a plan",
        file="rank0.pickle",
        content=_snapshot(),
        damage=damaged_pickle,
        read=command("explain", "PLAN", "--record", "FILE"),
    ),
    Reader(name="trace", file="rank0.json", content=_trace(), damage=damaged_json, read=command("profile", "FILE")),
    Reader(
        name="trace as JSON",
        file="rank0.json",
        content=_trace(),
        damage=damaged_json,
        read=command("profile", "FILE", "--json"),
    ),
    Reader(
        name="packed trace",
        file="rank0.json.gz",
        content=gzip.compress(_trace()),
        damage=damaged_gzip,
        read=command("profile", "FILE"),
    ),
    *(
        Reader(name=name, file="train.log", content=content, damage=damaged_text, read=RECONCILE)
        for name, content in LOG_FILES.items()
    ),
    Reader(
        name="log of Lightning",
        file="metrics.csv",
        content=LIGHTNING,
        damage=damaged_text,
        read=RECONCILE,
    ),
    Reader(
        name="state of a Trainer",
        file="trainer_state.json",
        content=as_json(STATE),
        damage=damaged_json,
        read=RECONCILE,
    ),
    Reader(name="metrics", file="metrics.jsonl", content=lines(*STEPS), damage=damaged_json, read=RECONCILE),
    Reader(
        name="metrics of a failed run",
        file="metrics.jsonl",
        content=lines(*STEPS),
        damage=damaged_json,
        read=lambda path: diagnose(path.parent),
    ),
    Reader(
        name="message of a full device",
        file="oom.log",
        content=OOM,
        damage=damaged_text,
        read=command("explain", "--oom-log", "FILE"),
    ),
    Reader(
        name="flight recorder",
        file="recorder.json",
        content=as_json(RECORDER),
        damage=damaged_json,
        read=read_flight_recorder,
    ),
    Reader(name="weights", file="model.safetensors", content=_weights(), damage=damaged_safetensors, read=read_weights),
    Reader(
        name="index of weights",
        file="model.safetensors.index.json",
        content=as_json({"metadata": {}, "weight_map": {"a": "part-1.safetensors"}}),
        damage=damaged_json,
        read=read_weights,
    ),
    Reader(
        name="index of tokens", file="tokens.idx", content=_index_of_tokens(), damage=damaged_bytes, read=read_tokens
    ),
    Reader(
        name="documents",
        file="corpus.jsonl",
        content=lines({"text": "one"}, {"text": "two"}),
        damage=damaged_json,
        read=lambda path: [example_of(row, field="text") for row in read_rows(path)],
    ),
    Reader(
        name="packed documents",
        file="corpus.jsonl.gz",
        content=gzip.compress(as_json({"text": "one"})),
        damage=damaged_gzip,
        read=lambda path: [example_of(row, field="text") for row in read_rows(path)],
    ),
    Reader(
        name="origin of a checkpoint",
        file="state.json",
        content=json.dumps(origin_facts(make_job(), {"seed": 0, "is_shuffled": True})).encode(),
        damage=damaged_json,
        read=resume,
    ),
    Reader(
        name="list of a checkpoint's files",
        file=COMPLETE,
        content=as_json({"files_bytes": {".metadata": 7}, "files_crc32": {}}),
        damage=damaged_json,
        read=resume,
    ),
)
"""Plan, model, cluster, measurements, recordings, logs, data and weights: what a person gives a command."""
