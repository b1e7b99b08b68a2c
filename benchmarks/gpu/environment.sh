# Sourced by the session scripts with the output folder as argument.
OUTPUT=$1
mkdir -p "$OUTPUT"
# NVLink multicast stays off: on shared hosts a program that uses it can take other tenants' GPUs out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=8 TOKENIZERS_PARALLELISM=false
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor

describe_machine() {
  nvidia-smi
  nvidia-smi topo -m
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,pcie.link.gen.max --format=csv
  python3 -c 'import torch, transformers, triton; print("torch", torch.__version__, "nccl", torch.cuda.nccl.version(), "cudnn", torch.backends.cudnn.version(), "transformers", transformers.__version__, "triton", triton.__version__)'
  python3 --version; lscpu | head -20; uname -r
}
