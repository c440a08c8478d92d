"""ELMo's computation in the layout of ELMoForManyLangs: words -> character CNN -> LSTMs with projection -> one vector.

Che et al. 2018, "Towards Better UD Parsing", CoNLL shared task, aclanthology.org/K18-2005; the network is that of
Peters et al. 2018, arXiv:1802.05365: highway layers of Srivastava et al. 2015, arXiv:1505.00387, and the LSTM with a
projected state of Sak et al. 2014, arXiv:1402.1128, with the cell and the state clipped. Shapes: B texts, T tokens,
N words, K characters of a word, P projection_dim, C cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

# A step's four gates are 4 C floats a text, 64 KiB in the published models: at most 64 MiB of them at a time.
_PROJECTED_TOKENS = 1024

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class ElmoConfig:
    """What shapes the network and its inputs; one of word_dim and char_dim may be 0, a clip of 0 is none."""

    projection_dim: int
    cell_dim: int
    layers: int
    cell_clip: float
    projection_clip: float
    word_dim: int
    char_dim: int
    max_characters: int
    """Characters of a word, the two boundary marks included; what is beyond is cut off."""
    filters: tuple[tuple[int, int], ...] = ()
    """(width in characters, number of filters) each."""
    highways: int = 0
    activation: str = "relu"
    """After the convolutions; the highway layers always have relu."""

    @property
    def filter_count(self) -> int:
        return sum(count for _, count in self.filters)

    @property
    def widest_filter(self) -> int:
        return max((width for width, _ in self.filters), default=0)


def embedder_shapes(config: ElmoConfig, words: int, characters: int) -> Shapes:
    """Names and shapes of token_embedder.pkl's tensors, for vocabularies of so many entries."""
    if config.word_dim:
        yield "word_emb_layer.embedding.weight", (words, config.word_dim)
    if config.char_dim:
        yield "char_emb_layer.embedding.weight", (characters, config.char_dim)
        for place, (width, count) in enumerate(config.filters):
            yield f"convolutions.{place}.weight", (count, config.char_dim, width)
            yield f"convolutions.{place}.bias", (count,)
        for place in range(config.highways):
            yield f"highways._layers.{place}.weight", (2 * config.filter_count, config.filter_count)
            yield f"highways._layers.{place}.bias", (2 * config.filter_count,)
    yield "projection.weight", (config.projection_dim, config.word_dim + config.filter_count)
    yield "projection.bias", (config.projection_dim,)


def encoder_shapes(config: ElmoConfig) -> Shapes:
    """Names and shapes of encoder.pkl's tensors."""
    for layer in range(config.layers):
        for direction in ("forward", "backward"):
            name = f"{direction}_layer_{layer}"
            yield f"{name}.input_linearity.weight", (4 * config.cell_dim, config.projection_dim)
            yield f"{name}.state_linearity.weight", (4 * config.cell_dim, config.projection_dim)
            yield f"{name}.state_linearity.bias", (4 * config.cell_dim,)
            yield f"{name}.state_projection.weight", (config.projection_dim, config.cell_dim)


class ElmoNetwork:
    """The network with its weights; every method is for inference alone, without dropout.

    Parameters
    ----------
    embedder, encoder : float32 tensors of one device, named and shaped as embedder_shapes and encoder_shapes say.
    """

    def __init__(
        self, config: ElmoConfig, embedder: Mapping[str, torch.Tensor], encoder: Mapping[str, torch.Tensor]
    ) -> None:
        self.config = config
        self._embedder = embedder
        self._encoder = encoder

    def embed(self, words: torch.Tensor, characters: torch.Tensor) -> torch.Tensor:
        """Words out of context, ELMo's layer 0.

        Parameters
        ----------
        words : int64, shape (N,)
            Numbers in the word vocabulary; not read where word_dim is 0.
        characters : int64, shape (N, K)
            Numbers in the character vocabulary; not read where char_dim is 0. K is at least the widest filter.

        Returns
        -------
        float32, shape (N, P)
        """
        parts = []
        if self.config.word_dim:
            parts.append(self._embedder["word_emb_layer.embedding.weight"][words])
        if self.config.char_dim:
            parts.append(self._highways(self._convolve(characters)))
        return functional.linear(
            torch.cat(parts, dim=1), self._embedder["projection.weight"], self._embedder["projection.bias"]
        )

    def _convolve(self, characters: torch.Tensor) -> torch.Tensor:
        """(N, K) -> (N, filters). Matrix products, not conv1d: cuDNN would compute that in TF32, to three digits."""
        embedded = self._embedder["char_emb_layer.embedding.weight"][characters]  # (N, K, char_dim)
        pooled = []
        for place, (width, _) in enumerate(self.config.filters):
            windows = embedded.unfold(1, width, 1).flatten(2)  # (N, K - width + 1, char_dim * width)
            weight = self._embedder[f"convolutions.{place}.weight"].flatten(1)
            pooled.append(functional.linear(windows, weight, self._embedder[f"convolutions.{place}.bias"]).amax(dim=1))
        convolved = torch.cat(pooled, dim=1)
        return torch.tanh(convolved) if self.config.activation == "tanh" else torch.relu(convolved)

    def _highways(self, values: torch.Tensor) -> torch.Tensor:
        """(N, filters) -> the same: g x + (1 - g) relu(A x + a), with g = sigmoid(B x + b)."""
        for place in range(self.config.highways):
            name = f"highways._layers.{place}"
            both = functional.linear(values, self._embedder[f"{name}.weight"], self._embedder[f"{name}.bias"])
            transformed, gate = both.chunk(2, dim=1)
            gate = torch.sigmoid(gate)
            values = gate * values + (1 - gate) * torch.relu(transformed)
        return values

    def average(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The average of layer 0 and every LSTM layer, then over the tokens between the first and the last.

        Parameters
        ----------
        tokens : float32, shape (T, B, P)
            Embedded tokens; what lies beyond a text's length is never read.
        lengths : int64, shape (B,)
            Tokens of each text, <bos> and <eos> included: 3 at least, the longest first.

        Returns
        -------
        float32, shape (B, 2 P): forward, then backward.
        """
        # Either direction's last token is dropped and nothing comes after it: that step need not be run.
        steps = torch.arange(len(tokens) - 1, device=tokens.device).unsqueeze(1)  # (T - 1, 1)
        runs = steps < lengths - 1
        inner = (runs & (steps >= 1)).unsqueeze(2)  # (T - 1, B, 1)
        # A text read from its end starts at its own last token, not at the batch's, and has the same inner places.
        mirrored = (lengths - 1 - steps).clamp(min=0)
        backward = tokens[mirrored, torch.arange(tokens.shape[1], device=tokens.device)]
        active = runs.sum(dim=1).tolist()
        sums = [
            (self._sum_of_layers(direction, states, active) * inner).sum(dim=0)
            for direction, states in (("forward", tokens[:-1]), ("backward", backward))
        ]
        return torch.cat(sums, dim=1) / ((lengths - 2) * (1 + self.config.layers)).unsqueeze(1)

    def _sum_of_layers(self, direction: str, states: torch.Tensor, active: list[int]) -> torch.Tensor:
        total = states.clone()
        for layer in range(self.config.layers):
            output = self._lstm(f"{direction}_layer_{layer}", states, active)
            states = output + states if layer else output  # the first layer has no residual connection
            total += states
        return total

    def _lstm(self, name: str, inputs: torch.Tensor, active: list[int]) -> torch.Tensor:
        """(T, B, P) -> the same, from a zero state; at step t only the first active[t] texts still run."""
        from_input = self._encoder[f"{name}.input_linearity.weight"]
        from_state, bias = (self._encoder[f"{name}.state_linearity.{part}"] for part in ("weight", "bias"))
        projection = self._encoder[f"{name}.state_projection.weight"]
        state = inputs.new_zeros(inputs.shape[1], self.config.projection_dim)
        memory = inputs.new_zeros(inputs.shape[1], self.config.cell_dim)
        outputs = torch.zeros_like(inputs)
        block = max(1, _PROJECTED_TOKENS // inputs.shape[1])
        for start in range(0, len(inputs), block):
            projected = functional.linear(inputs[start : start + block], from_input, bias)  # (block, B, 4 C)
            for step, gates in enumerate(projected, start):
                rows = active[step]
                gates = gates[:rows] + functional.linear(state[:rows], from_state)
                entry, keep, candidate, exit_ = gates.chunk(4, dim=1)
                memory = torch.sigmoid(entry) * torch.tanh(candidate) + torch.sigmoid(keep) * memory[:rows]
                memory = _clip(memory, self.config.cell_clip)
                state = functional.linear(torch.sigmoid(exit_) * torch.tanh(memory), projection)
                state = _clip(state, self.config.projection_clip)
                outputs[step, :rows] = state
        return outputs


def _clip(values: torch.Tensor, bound: float) -> torch.Tensor:
    return values.clamp(-bound, bound) if bound else values
