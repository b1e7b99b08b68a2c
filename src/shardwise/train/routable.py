"""Whether routers can be evened out as a job asks; ranks look, and the launcher before it starts them."""

from shardwise.errors import LayoutError, ModelError
from shardwise.train.job import Job

__all__ = ["own_loss_coef", "require_routable"]

OWN_LOSS_COEF = 0.001
"""``router_aux_loss_coef`` of a Mixtral and of a Qwen3-MoE config that leaves it out. Source: transformers 5.24."""


def own_loss_coef(job: Job) -> float:
    """The coefficient of our own decoder's auxiliary loss: what is asked for, or with which transformers adds it."""
    fields, asked = job.model_config, job.routing.aux_loss_ratio
    if asked is not None:
        return asked
    given = fields.get("router_aux_loss_coef")
    return float(str(OWN_LOSS_COEF if given is None else given)) if fields.get("output_router_logits") else 0.0


def require_routable(job: Job, *, coef: float, has_biases: bool) -> None:
    """Return when a model with routed experts can add an auxiliary loss of a coefficient, and has biases to move.

    Raises:
        LayoutError: an auxiliary loss over all layers is asked for, and a pipeline stage sees only its own.
        ModelError: biases shall move, and routers have none.
    """
    if coef > 0 and job.layout.pp > 1:
        raise LayoutError(
            f"the auxiliary loss of routers is one over all layers, and with pp={job.layout.pp} no rank sees them all",
            code="train-router-loss",
            fix="set pp to 1, or --router-aux-loss-coef 0",
        )
    if job.routing.bias_update_ratio > 0 and not has_biases:
        raise ModelError(
            f"{job.model_config['model_type']} adds no bias before it chooses experts, so none can be moved",
            code="train-router-bias",
            fix="leave out --router-bias-update-rate, or set --router-aux-loss-coef 0.001",
        )
