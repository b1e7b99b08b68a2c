"""The whole decoder, or the part of it that one pipeline chunk holds.

Shapes: B sequences, S tokens, D hidden, V vocabulary (this rank's part).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn

from shardwise.train.decoder.blocks import Block, Places, RmsNorm
from shardwise.train.decoder.config import DecoderConfig
from shardwise.train.decoder.groups import ALONE, SEQUENCE_DIM, BlockGroups, local
from shardwise.train.decoder.rotary import rotary_table
from shardwise.train.document_mask import document_mask
from shardwise.train.exchange import all_reduce_forward, all_reduced, gathered, reduce_scatter_dim
from shardwise.train.loss import LossSettings, summed_token_loss
from shardwise.train.routing import RouterWatch
from shardwise.train.spread_vocabulary import Spread, share_of_sum, spread_lookup, tokens_of_all


class Embedding(nn.Module):
    """The token table, divided by vocabulary row over tensor-parallel ranks."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.padding_row = config.padding_row
        self.groups = ALONE
        self.spread: Spread | None = None

    def forward(self, ids_BS: Tensor) -> Tensor:
        """``(B, S)`` to ``(B, S, D)``; divided along the sequence under sequence parallelism."""
        table, group = local(self.weight), self.groups.tp
        if self.spread is not None:
            return spread_lookup(ids_BS, table, self.spread, padding_row=self.padding_row)
        if group is None:
            return F.embedding(ids_BS, table, padding_idx=self.padding_row)
        rows = table.size(0)
        first = group.rank() * rows
        shifted = ids_BS - first
        is_here = (shifted >= 0) & (shifted < rows)
        padding_row = None if self.padding_row is None else self.padding_row - first
        is_own_row = padding_row is not None and 0 <= padding_row < rows
        own = F.embedding(shifted.clamp(0, rows - 1), table, padding_idx=padding_row if is_own_row else None)
        found = own * is_here.unsqueeze(-1)
        if self.groups.is_sequence_parallel:
            return reduce_scatter_dim(found, SEQUENCE_DIM, group)
        return all_reduce_forward(found, group)


class Head(nn.Module):
    """Output projection and loss in one, so that the logits of the whole batch never exist."""

    def __init__(self, weight_VD: Tensor, *, padding_row: int | None = None) -> None:
        super().__init__()
        self.weight = weight_VD if isinstance(weight_VD, nn.Parameter) else nn.Parameter(weight_VD)
        self.padding_row = padding_row
        self.groups = ALONE
        self.settings = LossSettings()
        self.spread: Spread | None = None

    def forward(self, x_BSD: Tensor, labels_BS: Tensor | None, places_B: Tensor | None = None) -> Tensor:
        """The summed loss of all tokens that have a label, in fp32; or the likeliest tokens after those at places."""
        if places_B is not None:
            rows_B = torch.arange(x_BSD.size(0), device=x_BSD.device)
            return self._likeliest(self.groups.enter(x_BSD)[rows_B, places_B])
        assert labels_BS is not None
        hidden_TD = self.groups.enter(x_BSD).flatten(0, 1)
        if self.spread is not None:
            return self._spread_loss(hidden_TD, labels_BS.flatten(), self.spread)
        return summed_token_loss(
            hidden_TD, local(self.weight), labels_BS.flatten(), settings=self.settings, group=self.groups.tp
        )

    def _likeliest(self, hidden_BD: Tensor) -> Tensor:
        """The token with the largest logit after each hidden state; of equal ones every rank takes the lowest."""
        spread = self.spread
        group = spread.group if spread is not None else self.groups.tp
        rows_VD = local(self.weight) if spread is None else local(self.weight).to(spread.dtype)
        largest_B, index_B = (hidden_BD.to(rows_VD.dtype) @ rows_VD.t()).float().max(dim=1)
        if group is None:
            return index_B
        highest_B = all_reduced(largest_B, "max", group)
        token_B = index_B + group.rank() * rows_VD.size(0)
        beyond = group.size() * rows_VD.size(0)
        return -all_reduced(-torch.where(largest_B == highest_B, token_B, beyond), "max", group)

    def _spread_loss(self, hidden_TD: Tensor, labels_T: Tensor, spread: Spread) -> Tensor:
        rows_VD = local(self.weight).to(spread.dtype)
        labels = gathered(labels_T, spread.group)
        loss = summed_token_loss(
            tokens_of_all(hidden_TD, spread), rows_VD, labels, settings=self.settings, group=spread.group
        )
        return share_of_sum(loss, spread)


def _head(config: DecoderConfig) -> Head:
    padding_row = config.padding_row if config.tie_word_embeddings else None
    return Head(torch.empty(config.vocab_size, config.hidden_size), padding_row=padding_row)


class Body(nn.Module):
    """Embedding, blocks and final norm; a pipeline chunk lacks what other chunks hold."""

    def __init__(self, config: DecoderConfig, layers: range, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config) if is_first else None
        self.layers = nn.ModuleDict({str(index): Block(config) for index in layers})
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps_ratio) if is_last else None


class Decoder(nn.Module):
    """A decoder that returns its summed loss, or hidden states where another pipeline chunk follows."""

    def __init__(self, config: DecoderConfig, *, layers: range, is_first: bool = True, is_last: bool = True) -> None:
        super().__init__()
        self.config = config
        self.initializer_ratio = config.initializer_ratio
        self.model = Body(config, layers, is_first=is_first, is_last=is_last)
        self.lm_head = _head(config) if is_last else None
        self.tie()
        self.watch: RouterWatch | None = None
        self.register_buffer("cosines", None, persistent=False)
        self.register_buffer("sines", None, persistent=False)
        self.register_buffer("positions", None, persistent=False)

    def tie(self) -> None:
        """Make the head's matrix the token table where the config ties them; again after either was replaced."""
        if self.config.tie_word_embeddings and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def blocks(self) -> Iterator[nn.Module]:
        """The blocks in order."""
        yield from self.model.layers.values()

    def join(self, groups: BlockGroups) -> None:
        """Work in these groups from now on."""
        for module in self.modules():
            if isinstance(module, Block):
                module.join(groups)
            elif isinstance(module, Embedding | Head):
                module.groups = groups

    def spread(self, spread: Spread) -> None:
        """Look tokens up, and multiply with the head, in rows that the ranks of a group divide."""
        for module in self.modules():
            if isinstance(module, Embedding | Head):
                module.spread = spread

    @property
    def vocabulary_ranks(self) -> int:
        """Data-parallel ranks that divide the head by row; 1 when each has the whole."""
        spread = self.lm_head.spread if self.lm_head is not None else None
        return spread.num_ranks if spread is not None else 1

    def prepare_positions(self, positions: Tensor) -> None:
        """Make the rotary table of the positions this rank holds of every sequence."""
        table = rotary_table(self.config.rope, head_dim=self.config.head_dim, positions=positions)
        self.cosines, self.sines = table
        self.positions = positions

    @property
    def tied_end(self) -> nn.Parameter | None:
        """The token table or the head, where they are one matrix and another pipeline stage holds its twin."""
        table, head = self.model.embed_tokens, self.lm_head
        if not self.config.tie_word_embeddings or (table is None) == (head is None):
            return None
        return (table or head).weight  # type: ignore[union-attr]

    def places(self, document_places_BS: Tensor | None) -> Places:
        """Where this rank's tokens stand: in the sequence, or each in its own document."""
        if document_places_BS is None:
            return Places(cosines=self.cosines, sines=self.sines)
        own = document_places_BS[:, self.positions]
        cosines, sines = rotary_table(self.config.rope, head_dim=self.config.head_dim, positions=own)
        return Places(cosines=cosines, sines=sines, mask=document_mask(document_places_BS, self.positions))

    def _through_blocks(self, x: Tensor, places: Places) -> Tensor:
        watch = self.watch
        if watch is None:
            for block in self.model.layers.values():
                x = block(x, places)
            return x
        watch.open()
        for index, block in self.model.layers.items():
            x, routing = block(x, places)
            watch.note(int(index), routing)
        watch.close()
        return x

    def watch_routers(self, watch: RouterWatch) -> None:
        """Tell this watch of every router; before blocks are compiled."""
        self.watch = watch
        for block in self.model.layers.values():
            block.tells_routing = True
            block.mlp.is_balanced = watch.aux_loss_coef > 0

    def forward(
        self,
        x: Tensor,
        labels_BS: Tensor | None = None,
        document_places_BS: Tensor | None = None,
        next_after_B: Tensor | None = None,
    ) -> Tensor:
        """Token ids ``(B, S)`` or hidden states ``(B, S, D)`` to the summed loss, or to hidden states.

        ``document_places_BS`` holds the place in its document of every token of the whole sequences, where documents
        are not to see each other. ``next_after_B`` asks for the likeliest token after one place of each sequence.
        """
        places = self.places(document_places_BS)
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        x = self._through_blocks(x, places)
        if self.model.norm is not None:
            x = self.model.norm(x)
        if self.lm_head is None or (labels_BS is None and next_after_B is None):
            return x
        if next_after_B is not None:
            return self.lm_head(x, None, next_after_B)
        return self.lm_head(x, labels_BS)
