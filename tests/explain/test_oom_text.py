"""Messages of several torch versions, as users pasted them into public threads."""

import pytest

from shardwise.errors import ShardwiseError
from shardwise.explain.oom_text import parse_oom, parse_size
from shardwise.units import GIB, MIB

TORCH_2 = """torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of
79.15 GiB of which 1.28 GiB is free. Including non-PyTorch memory, this process has 77.86 GiB memory in use. Of the
allocated memory 70.00 GiB is allocated by PyTorch, and 5.33 GiB is reserved by PyTorch but unallocated. If reserved but
unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."""

TORCH_2_CONTAINER = (
    "CUDA out of memory. Tried to allocate 1.25 GiB. GPU 1 has a total capacity of 93.02 GiB of which 1.18 GiB is "
    "free. Process 2752205 has 91.82 GiB memory in use. Of the allocated memory 90.63 GiB is allocated by PyTorch, "
    "and 120.54 MiB is reserved by PyTorch but unallocated."
)

TORCH_2_1_TWO_PROCESSES = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of "
    "23.69 GiB of which 12.00 MiB is free. Process 77 has 10.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 13.50 GiB memory in use. Of the allocated memory 12.75 GiB is allocated by PyTorch, with 1.00 GiB "
    "allocated in private pools (e.g., CUDA Graphs), and 261.00 MiB is reserved by PyTorch but unallocated."
)

TORCH_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.90 GiB total capacity; 13.45 GiB already "
    "allocated; 1.23 GiB free; 13.67 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
    "setting max_split_size_mb to avoid fragmentation."
)
TORCH_1_0 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already "
    "allocated; 9.28 GiB free; 4.68 MiB cached)"
)


def test_reads_every_number_of_a_torch_2_message():
    message = parse_oom(TORCH_2)
    assert message.family == "torch-2"
    assert message.device_index == 3
    assert message.request.num_bytes == 2 * GIB
    assert message.capacity is not None
    assert message.capacity.num_bytes == round(79.15 * GIB)
    assert message.free is not None
    assert message.free.num_bytes == round(1.28 * GIB)
    assert message.allocated is not None
    assert message.allocated.num_bytes == 70 * GIB
    assert message.unallocated_bytes == round(5.33 * GIB)


def test_the_part_outside_the_allocator_is_what_is_left_of_the_process():
    """77.86 in use - 70.00 allocated - 5.33 unallocated = 2.53 GiB of context, NCCL and other libraries."""
    assert parse_oom(TORCH_2).outside_allocator_bytes == pytest.approx(2.53 * GIB, abs=2)


def test_a_single_numbered_process_in_a_container_is_this_process():
    message = parse_oom(TORCH_2_CONTAINER)
    assert message.process is not None
    assert message.process.num_bytes == round(91.82 * GIB)
    assert message.other_processes == ()


def test_another_process_on_the_same_gpu_is_seen_and_the_old_typo_is_understood():
    message = parse_oom(TORCH_2_1_TWO_PROCESSES)
    assert message.capacity is not None
    assert [size.num_bytes for size in message.other_processes] == [10 * GIB]
    assert message.private_pools is not None
    assert message.private_pools.num_bytes == GIB
    assert message.process is not None
    assert message.process.num_bytes == round(13.5 * GIB)


def test_reads_torch_1_where_reserved_includes_allocated():
    message = parse_oom(TORCH_1)
    assert message.family == "torch-1"
    assert message.unallocated_bytes == pytest.approx(0.22 * GIB, abs=2)


def test_reads_torch_1_0_where_the_cache_is_named_cached():
    message = parse_oom(TORCH_1_0)
    assert message.request.num_bytes == round(12.5 * MIB)
    assert message.unallocated_bytes == round(4.68 * MIB)


@pytest.mark.parametrize(
    ("text", "family", "num_bytes"),
    [
        (
            "MPS backend out of memory (MPS allocated: 5.05 GB, other allocations: 1.02 GB, max allowed: 6.80 GB). "
            "Tried to allocate 256.00 MB on private pool.",
            "mps",
            256_000_000,
        ),
        (
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12",
            "cpu",
            2**33,
        ),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.", "xla", 2**35),
        ("HIP out of memory. Tried to allocate 32.00 GiB.", "torch-2", 2**35),
        (
            "NPU out of memory. Tried to allocate 31.67 GiB (NPU 0; 32.00 GiB total capacity; 6.30 GiB already "
            "allocated; 24.39 GiB free; 6.55 GiB reserved in total by PyTorch)",
            "torch-1",
            round(31.67 * GIB),
        ),
    ],
)
def test_reads_other_devices_and_frameworks(text, family, num_bytes):
    message = parse_oom(text)
    assert message.family == family
    assert message.request.num_bytes == num_bytes


def test_line_breaks_and_log_prefixes_do_not_matter():
    noisy = "[rank3]: Traceback ...\n[rank3]:   loss.backward()\n" + TORCH_2.replace(". ", ".\n ")
    assert parse_oom(noisy).request.num_bytes == 2 * GIB


@pytest.mark.parametrize("text", ["", "it is slow", "x" * 100_000])
def test_text_without_a_message_is_refused_with_a_fix(text):
    with pytest.raises(ShardwiseError) as refusal:
        parse_oom(text)
    assert refusal.value.code == "oom-text"
    assert "Tried to allocate" in refusal.value.fix


@pytest.mark.parametrize(
    ("text", "num_bytes", "tolerance"),
    [("34359738368", 2**35, 0), ("32 GiB", 2**35, 2**29 + 1), ("1.5GB", 1_500_000_000, 50_000_001), ("7 bytes", 7, 0)],
)
def test_a_size_carries_the_rounding_of_its_digits(text, num_bytes, tolerance):
    size = parse_size(text)
    assert (size.num_bytes, size.tolerance_bytes) == (num_bytes, tolerance)


@pytest.mark.parametrize("text", ["", "-5", "nan", "lots", "1e999 GiB", "9" * 40])
def test_a_size_that_is_not_one_is_refused(text):
    with pytest.raises(ShardwiseError) as refusal:
        parse_size(text)
    assert refusal.value.code == "allocation-size"
