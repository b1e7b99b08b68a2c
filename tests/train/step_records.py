"""Records of steps that nothing took, for what reads them."""

from shardwise.train.metrics import StepRecord


def step_record(*, step, loss=1.0, is_sampled=False):
    """What one step of seven tokens on one process would say."""
    return StepRecord(
        step=step,
        loss=loss,
        gradient_norm=1.0,
        learning_rate=0.1,
        num_tokens=7,
        step_s=1.0,
        data_wait_s=0.0,
        tokens_per_s=7.0,
        tokens_per_s_per_gpu=7.0,
        mfu_fraction=None,
        peak_allocated_bytes=0,
        peak_reserved_bytes=0,
        is_sampled=is_sampled,
    )
