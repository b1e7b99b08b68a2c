"""How evenly routers spread tokens over experts: counted in every step, and evened out by a loss or by biases.

Counts stay on the device: one sum over ranks a step, read with the step's loss. The auxiliary loss sums once more for
every forward pass, because it asks for the balance of all tokens of that pass and not of those of one rank.

Shapes: L layers with experts (of the whole model), E experts, K experts of each token, T tokens of this rank.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from shardwise.train.exchange import world_sum
from shardwise.train.job import ExpertLoad

__all__ = ["RouterWatch", "Routing", "RoutingSums", "Scores", "biases_of", "count_experts", "score_experts"]


class Said(TypedDict, total=False):
    """The fields of a step's record that are about routers."""

    router_aux_loss: float
    expert_load_ratios: Mapping[str, float]
    expert_counts: Mapping[str, Sequence[int]]


BIAS_NAMES = ("e_score_correction_bias", "expert_bias")
"""Names that families of transformers have for the bias that is added to an expert's score before the best are taken:
the first in DeepSeek-V3 and most others, the second in LFM2 and AFMoE."""


class Scores(NamedTuple):
    """The sums that the auxiliary loss needs of one router in one forward pass."""

    counts: Tensor
    """``(E,)``: tokens that have the expert among the K of highest probability."""
    probabilities: Tensor
    """``(E,)``: sums over tokens of the softmax of router logits, with their gradient."""


class Routing(NamedTuple):
    """One router in one forward pass."""

    counts: Tensor
    """``(E,)``: copies of tokens that each expert was sent."""
    scores: Scores | None = None
    """``None`` where no auxiliary loss is added."""


class RoutingSums(NamedTuple):
    """The routing of all ranks in one step."""

    load: Tensor
    """``(L, E)``: copies that each expert was sent; zeros for layers without experts."""
    aux_loss: Tensor | None
    """The auxiliary loss without its coefficient, as the mean over forward passes; ``None`` where none is added."""

    def on_host(self) -> "RoutingSums":
        """These sums in the host's memory, once the device has got that far; nobody waits here."""
        aux = self.aux_loss
        moved = None if aux is None else aux.to("cpu", non_blocking=True)
        return RoutingSums(self.load.to("cpu", non_blocking=True), moved)

    def said(self, asked: ExpertLoad | None) -> Said:
        """The values for a step's record; reading them waits for the device."""
        said: Said = {} if self.aux_loss is None else {"router_aux_loss": self.aux_loss.item()}
        if asked == "none":
            return said
        rows = {str(layer): row for layer, row in enumerate(self.load.tolist()) if any(row)}
        said["expert_load_ratios"] = {layer: max(row) * len(row) / sum(row) for layer, row in rows.items()}
        if asked == "counts":
            said["expert_counts"] = {layer: [round(count) for count in row] for layer, row in rows.items()}
        return said


def count_experts(experts_TK: Tensor, num_experts: int) -> Tensor:
    """How many copies each expert is sent: ``(T, K)`` to ``(E,)``; no wait for the device, and none for others."""
    places = experts_TK.flatten().long().clamp(max=num_experts)  # what is no expert (LongCat's identity) counts nowhere
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=places.device)
    return counts.scatter_add(0, places, torch.ones_like(places))[:num_experts]


def score_experts(logits_TE: Tensor, num_chosen: int) -> Scores:
    """The sums of one router's logits, in the dtypes that transformers computes them in.

    Source: ``load_balancing_loss_func`` of transformers 5.24 (``models/mixtral/modeling_mixtral.py``).
    """
    probabilities_TE = logits_TE.softmax(dim=-1)
    chosen_TK = probabilities_TE.detach().topk(num_chosen, dim=-1).indices
    return Scores(count_experts(chosen_TK, logits_TE.size(-1)), probabilities_TE.float().sum(0))


class RouterWatch:
    """Gathers what the routers of this rank's blocks do, and evens it out."""

    def __init__(
        self,
        *,
        blocks: Mapping[int, nn.Module],
        num_layers: int,
        num_experts: int,
        num_chosen: int,
        num_copies: int,
        aux_loss_coef: float,
        bias_update_rate: float,
        device: torch.device,
    ) -> None:
        self.blocks = blocks
        """The blocks of this rank with experts, by their place in the model."""
        self.num_experts, self.num_chosen = num_experts, num_chosen
        self.num_copies = num_copies
        """Ranks that route the same tokens: those of a tensor-parallel group without sequence parallelism."""
        self.aux_loss_coef, self.bias_update_rate = aux_loss_coef, bias_update_rate
        self.load_LE = torch.zeros(num_layers, num_experts, dtype=torch.float64, device=device)
        """Copies that each expert was sent since the step began; of the layers of other ranks zeros."""
        self._aux = torch.zeros(2, dtype=torch.float64, device=device)
        self._newest: dict[int, Routing] = {}
        self._is_open = False

    def open(self) -> None:
        """A forward pass begins."""
        self._newest, self._is_open = {}, True

    def note(self, layer: int, routing: Routing) -> None:
        """Take the report of a layer's router in a forward pass; reports that recomputation repeats are left out."""
        if self._is_open:
            self._newest[layer] = routing

    def close(self) -> None:
        """The forward pass has ended; in one that learns, its counts join those of the step."""
        self._is_open = False
        if self._newest and torch.is_grad_enabled():
            layers = torch.tensor(list(self._newest), device=self.load_LE.device)
            counts = torch.stack([routing.counts for routing in self._newest.values()])
            self.load_LE.index_add_(0, layers, counts.to(self.load_LE.dtype))

    def take_loss(self, num_tokens: Tensor) -> Tensor | None:
        """This rank's term of the auxiliary loss of the last forward pass, beside a cross-entropy summed over tokens.

        ``coef * N * E * sum_e f_e P_e`` with N labelled tokens, f_e the copies of a token that the router would
        send to expert e (0 to 1 in the mean) and P_e the expert's mean probability, both over all layers and the tokens
        of all ranks; K where all are equal. The step's loss is then the mean cross-entropy, plus the coefficient times
        the mean over its forward passes, each weighted by its labelled tokens. f has no gradient and P is a sum over
        ranks: every rank gives the part of its own tokens.

        Args:
            num_tokens: labelled tokens of this pass on this rank, shared among the ranks that hold the same ones.

        Source: Fedus et al. 2021, arXiv:2101.03961, equations 4 to 6; transformers 5.24,
            ``load_balancing_loss_func``; over all ranks as in Qiu et al. 2025, arXiv:2501.11873.
        """
        scores = [routing.scores for routing in self._newest.values() if routing.scores is not None]
        self._newest = {}
        if not scores:
            return None
        counts_E = torch.stack([one.counts for one in scores]).sum(0)
        own_E = torch.stack([one.probabilities for one in scores]).sum(0).double()
        together = torch.cat([counts_E.double(), own_E.detach(), num_tokens.double().view(1)])
        world_sum(together)
        sums_E, probabilities_E, tokens = together.split([self.num_experts, self.num_experts, 1])
        rows = sums_E.sum() / self.num_chosen
        fractions_E = sums_E / rows
        self._aux += torch.cat([self.num_experts * (fractions_E * probabilities_E / rows).sum() * tokens, tokens])
        own = self.num_experts * (fractions_E * own_E).sum() / (rows / self.num_copies)
        return (self.aux_loss_coef * tokens.squeeze() * own).float()

    def end_step(self) -> "RoutingSums":
        """Return the routing of all ranks since the step began, and count anew for the next step."""
        load_LE = world_sum(self.load_LE.clone()) / self.num_copies
        aux = self._aux[0] / self._aux[1].clamp(min=1) if self.aux_loss_coef else None
        self.load_LE.zero_()
        self._aux = torch.zeros_like(self._aux)
        return RoutingSums(load_LE, aux)

    def move_biases(self, load_LE: Tensor) -> None:
        """Raise the bias of each expert that was sent fewer copies than the mean, and lower that of each with more.

        ``b_i += u * sign(mean - load_i)``, once a step, over the tokens of all ranks.

        Source: Wang et al. 2024, arXiv:2408.15664, algorithm 1; DeepSeek-V3, arXiv:2412.19437, section 2.1.2.
        """
        if not self.bias_update_rate:
            return
        steps_LE = self.bias_update_rate * (load_LE.mean(dim=1, keepdim=True) - load_LE).sign()
        with torch.no_grad():
            for layer, block in self.blocks.items():
                for bias in biases_of(block):
                    _add(bias, steps_LE[layer])


def biases_of(block: nn.Module) -> Sequence[Tensor]:
    """The biases before the choice of experts in a block."""
    named = [*block.named_buffers(), *block.named_parameters()]
    return [tensor for name, tensor in named if name.rpartition(".")[2] in BIAS_NAMES]


def _add(bias: Tensor, step_E: Tensor) -> None:
    """Add to a bias that every rank holds, or, where the class made a parameter of it, to this rank's part."""
    step = step_E.to(bias.dtype).view(bias.shape)
    if isinstance(bias, DTensor):
        whole = DTensor.from_local(step, bias.device_mesh, [Replicate()] * bias.device_mesh.ndim, run_check=False)
        step = whole.redistribute(placements=bias.placements)
    bias.add_(step)
