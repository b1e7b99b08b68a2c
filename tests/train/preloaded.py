"""Imported by the server of forks: see ``preload``."""

import pytest  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: F401
from transformers.models.gemma import modeling_gemma  # noqa: F401
from transformers.models.llama import modeling_llama  # noqa: F401
from transformers.models.mixtral import modeling_mixtral  # noqa: F401
from transformers.models.qwen3_moe import modeling_qwen3_moe  # noqa: F401

import train.world_member  # noqa: F401
