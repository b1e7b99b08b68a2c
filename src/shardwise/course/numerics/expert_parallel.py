"""Expert parallelism: a router sends every token to K experts, which live on different ranks, and adds what they say.

Dispatch and combine are all-to-alls of token copies. Their backwards are the other one: the gradient of what an expert
said goes to the expert like a token, and the gradient of its input comes back like an answer.

Shapes: T tokens of this rank, K copies of each (its chosen experts), C = T x K copies, X experts of all ranks, R copies
that this rank receives, D hidden size, F width of one expert.

Source: Lepikhin et al. 2020 (GShard), arXiv:2006.16668, section 2; Jiang et al. 2024 (Mixtral), arXiv:2401.04088,
section 2.1, for the weights of the chosen experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, Integers, Mask, Named
from shardwise.course.numerics.layers import Product, gate, gate_backward, softmax, softmax_backward
from shardwise.course.numerics.world import Program, Rank
from shardwise.model import MoeSpec

ROUTER = "mlp.gate.weight"
GATE, UP, DOWN = "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where the copies of this rank's tokens go."""

    experts_TK: Integers
    """The experts of each token, the likeliest first."""
    order_C: Integers
    """Copies sorted by expert, dropped ones left out; copy c is of token ``c // K``."""
    sent_X: Integers
    """Copies sent to each expert."""
    is_dropped_TK: Mask

    @property
    def num_dropped(self) -> int:
        """Copies that found their expert full."""
        return int(self.is_dropped_TK.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRun:
    """What one expert computed for the copies it received."""

    inputs_RD: Array
    gate_RF: Array
    up_RF: Array
    hidden_RF: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsKept:
    """What a mixture of experts keeps for its backward."""

    routes: Routes
    probabilities_TX: Array
    runs: tuple[ExpertRun, ...]
    """One for each expert of this rank."""
    received_from: Integers
    """``(members, experts of this rank)``: copies that each member sent to each expert."""
    answers_CD: Array
    """What the experts said, in the order of dispatch."""

    @property
    def arrays(self) -> Arrays:
        """Everything that is kept, routes aside."""
        per_expert = [(run.inputs_RD, run.gate_RF, run.up_RF, run.hidden_RF) for run in self.runs]
        return (self.probabilities_TX, self.answers_CD, *(array for run in per_expert for array in run))


def expert_capacity(*, num_tokens: int, num_experts: int, num_experts_per_tok: int, capacity_ratio: float) -> int:
    """The most copies that one rank sends to one expert.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2; Fedus et al. 2021, arXiv:2101.03961, equation 3.

    >>> expert_capacity(num_tokens=64, num_experts=8, num_experts_per_tok=2, capacity_ratio=1.25)
    20
    """
    return ceil(capacity_ratio * num_tokens * num_experts_per_tok / num_experts)


def route(probabilities_TX: Array, num_experts_per_tok: int, capacity: int | None) -> Routes:
    """The likeliest experts of every token; full experts drop the copies of later tokens.

    >>> routes = route(np.array([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1]]), 1, 2)
    >>> routes.sent_X.tolist(), routes.num_dropped
    ([2, 0], 1)
    """
    num_tokens, num_experts = probabilities_TX.shape
    experts_TK = np.argsort(-probabilities_TX, axis=1, kind="stable")[:, :num_experts_per_tok]
    chosen_C = experts_TK.reshape(-1)
    order_C = np.argsort(chosen_C, kind="stable")
    wanted_X = np.bincount(chosen_C, minlength=num_experts)
    sent_X = wanted_X if capacity is None else np.minimum(wanted_X, capacity)
    starts_X = np.cumsum(wanted_X) - wanted_X
    place_C = np.arange(order_C.size) - starts_X[chosen_C[order_C]]
    is_kept_C = place_C < sent_X[chosen_C[order_C]]
    is_dropped = np.zeros(chosen_C.size, dtype=bool)
    is_dropped[order_C[~is_kept_C]] = True
    return Routes(
        experts_TK=experts_TK,
        order_C=order_C[is_kept_C],
        sent_X=sent_X,
        is_dropped_TK=is_dropped.reshape(num_tokens, num_experts_per_tok),
    )


def experts_forward(
    rank: Rank, weights: Named, x_TD: Array, moe: MoeSpec, capacity_ratio: float | None
) -> Program[tuple[Array, ExpertsKept]]:
    """What the chosen experts say about every token, weighted by the router."""
    probabilities_TX = softmax(x_TD @ weights[ROUTER].T)
    capacity = None
    if capacity_ratio is not None:
        capacity = expert_capacity(
            num_tokens=len(x_TD),
            num_experts=moe.num_experts,
            num_experts_per_tok=moe.num_experts_per_tok,
            capacity_ratio=capacity_ratio,
        )
    routes = route(probabilities_TX, moe.num_experts_per_tok, capacity)
    copies_CD = x_TD[routes.order_C // moe.num_experts_per_tok]
    sorted_by_member, received_from = yield from _dispatch(rank, routes, copies_CD, name="expert dispatch")
    runs, answers = [], []
    for expert, inputs_RD in enumerate(_by_expert(sorted_by_member, received_from)):
        gate_RF, up_RF = inputs_RD @ weights[GATE][expert].T, inputs_RD @ weights[UP][expert].T
        hidden_RF = gate(gate_RF, up_RF)
        runs.append(ExpertRun(inputs_RD=inputs_RD, gate_RF=gate_RF, up_RF=up_RF, hidden_RF=hidden_RF))
        answers.append(hidden_RF @ weights[DOWN][expert].T)
    answers_CD = yield from _return(rank, answers, received_from, name="expert combine")
    kept = ExpertsKept(
        routes=routes,
        probabilities_TX=probabilities_TX,
        runs=tuple(runs),
        received_from=received_from,
        answers_CD=answers_CD,
    )
    shares_TK, _ = _shares(kept)
    y_TD = np.zeros_like(x_TD)
    np.add.at(y_TD, routes.order_C // shares_TK.shape[1], answers_CD * shares_TK.reshape(-1, 1)[routes.order_C])
    return y_TD, kept


def experts_backward(
    rank: Rank, weights: Named, x_TD: Array, dy_TD: Array, kept: ExpertsKept
) -> Program[tuple[Array, list[Product]]]:
    """The gradient of the tokens, and the products whose weight gradients remain."""
    routes = kept.routes
    shares_TK, chosen_TK = _shares(kept)
    token_C = routes.order_C // shares_TK.shape[1]
    answer_gradients_CD = dy_TD[token_C] * shares_TK.reshape(-1, 1)[routes.order_C]
    dshares_TK = np.zeros_like(shares_TK)
    dshares_TK.reshape(-1)[routes.order_C] = (dy_TD[token_C] * kept.answers_CD).sum(axis=-1)

    sorted_by_member, received_from = yield from _dispatch(rank, routes, answer_gradients_CD, name="expert combine")
    products, input_gradients = [], []
    for expert, doutput_RD in enumerate(_by_expert(sorted_by_member, received_from)):
        run = kept.runs[expert]
        dgate_RF, dup_RF = gate_backward(doutput_RD @ weights[DOWN][expert], run.gate_RF, run.up_RF)
        input_gradients.append(dgate_RF @ weights[GATE][expert] + dup_RF @ weights[UP][expert])
        products += _expert_products(expert, run, (dgate_RF, dup_RF, doutput_RD))
    dcopies_CD = yield from _return(rank, input_gradients, received_from, name="expert dispatch")

    dprobabilities_TX = np.zeros_like(kept.probabilities_TX)
    sum_T1 = chosen_TK.sum(axis=1, keepdims=True)
    along_T1 = (dshares_TK * shares_TK).sum(axis=1, keepdims=True)
    np.put_along_axis(dprobabilities_TX, routes.experts_TK, (dshares_TK - along_T1) / sum_T1, axis=1)
    dscores_TX = softmax_backward(dprobabilities_TX, kept.probabilities_TX)
    dx_TD = dscores_TX @ weights[ROUTER]
    np.add.at(dx_TD, token_C, dcopies_CD)
    products.append(Product(name=ROUTER, inputs=x_TD, output_gradient=dscores_TX))
    return dx_TD, products


def stacked(products: list[Product], num_experts: int) -> Iterator[tuple[str, Array]]:
    """Weight gradients of the experts of this rank, one above the other as their weights are."""
    for name in (GATE, UP, DOWN):
        yield name, np.stack([products_of(products, f"{name}[{i}]").weight_gradient() for i in range(num_experts)])


def products_of(products: list[Product], name: str) -> Product:
    """The product of that name."""
    return next(product for product in products if product.name == name)


def _expert_products(expert: int, run: ExpertRun, gradients: Arrays) -> list[Product]:
    dgate_RF, dup_RF, doutput_RD = gradients
    return [
        Product(name=f"{GATE}[{expert}]", inputs=run.inputs_RD, output_gradient=dgate_RF),
        Product(name=f"{UP}[{expert}]", inputs=run.inputs_RD, output_gradient=dup_RF),
        Product(name=f"{DOWN}[{expert}]", inputs=run.hidden_RF, output_gradient=doutput_RD),
    ]


def _shares(kept: ExpertsKept) -> tuple[Array, Array]:
    """The weight of each chosen expert, which sum to one, and its probability."""
    chosen_TK = np.take_along_axis(kept.probabilities_TX, kept.routes.experts_TK, axis=1)
    return chosen_TK / chosen_TK.sum(axis=1, keepdims=True), chosen_TK


def _dispatch(rank: Rank, routes: Routes, copies_CD: Array, *, name: str) -> Program[tuple[Arrays, Integers]]:
    """Copies to the ranks of their experts; what every member sent here, and how much of it is for which expert.

    The counts are exchanged first, as real ranks do to make room for what comes.
    """
    group = rank.groups.experts
    counts = routes.sent_X.reshape(group.size, -1)
    parcels = tuple(np.split(copies_CD, np.cumsum(counts.sum(axis=1))[:-1]))
    received_from = yield from rank.all_to_all_counts(tuple(counts), group)
    received = yield from rank.all_to_all(parcels, group, name=name)
    return received, np.array(received_from)


def _return(rank: Rank, per_expert: list[Array], received_from: Integers, *, name: str) -> Program[Array]:
    """Answers back to the ranks whose tokens they are about, in the order of dispatch."""
    cut = [np.split(x, np.cumsum(counts)[:-1]) for x, counts in zip(per_expert, received_from.T, strict=True)]
    parcels = tuple(np.concatenate([pieces[member] for pieces in cut]) for member in range(len(received_from)))
    received = yield from rank.all_to_all(parcels, rank.groups.experts, name=name)
    return np.concatenate(received)


def _by_expert(received: Arrays, received_from: Integers) -> Iterator[Array]:
    """All copies for each expert of this rank, in the order of the members."""
    cut = [np.split(parcel, np.cumsum(counts)[:-1]) for parcel, counts in zip(received, received_from, strict=True)]
    for expert in range(received_from.shape[1]):
        yield np.concatenate([pieces[expert] for pieces in cut])
