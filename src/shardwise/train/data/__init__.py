"""Training data: documents to tokens to samples to micro-batches, the same for every layout.

Importing this package needs neither torch nor a tokenizer; ``batches`` and ``prefetch`` import torch.
"""

from shardwise.train.data.order import SampleOrder
from shardwise.train.data.request import open_samples, prepare_samples, require_readable, suited_packing

__all__ = ["SampleOrder", "open_samples", "prepare_samples", "require_readable", "suited_packing"]
