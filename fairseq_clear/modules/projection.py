"""The projection head g of SimCLR and CLEAR section 3.1: z = g(h), used in training and dropped at inference."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}


class ProjectionHead(nn.Module):
    """A multi-layer perceptron: linear layers with an activation between them and, optionally, after the last.

    The head of SimCLR (arXiv:2002.05709, section 2.1) is ``layers=2`` with ReLU. SimCSE uses ``layers=1`` with a final tanh.
    Self-Guided uses ``layers=2`` of width 4096, with GELU after each. ``layers=0`` means no head.

    Args:
        input_dim: width D of the encoder.
        hidden_dim: width of the layers before the last.
        layers: number of linear layers, 0 for the identity.
        activate_last: whether the activation also follows the last layer.
    """

    def __init__(
        self, input_dim: int, hidden_dim: int, output_dim: int, layers: int, activation: str, activate_last: bool
    ) -> None:
        super().__init__()
        widths = [input_dim] + [hidden_dim] * (layers - 1) + [output_dim] * min(layers, 1)
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.activation = ACTIVATIONS[activation]
        self.activated = len(self.layers) if activate_last else len(self.layers) - 1
        self.output_dim = widths[-1]

    def forward(self, embeddings: Tensor) -> Tensor:
        """Project embeddings (B, D) to (B, output_dim)."""
        for number, layer in enumerate(self.layers):
            embeddings = layer(embeddings)
            if number < self.activated:
                embeddings = self.activation(embeddings)
        return embeddings
