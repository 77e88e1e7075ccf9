"""Changes of an encoder's vectors that need no labels: the first dimensions, whitening, and BERT-flow.

BERT-flow (Li et al. 2020, arXiv:2011.05864, section 4): vectors of a pretrained encoder are unevenly distributed, which
distorts their cosines. A flow z = f^-1(u), an invertible network, is fitted to the vectors u of unlabelled sentences by maximum
likelihood, and z, which is normally distributed, replaces u.
The network is Glow's (Kingma and Dhariwal 2018, arXiv:1807.03039) on vectors: no images, so one level and no convolutions.
The paper's public code (bohanli/BERT-flow) has three levels, reverses the dimensions and only shifts in its couplings; here
the dimensions are permuted at random and the couplings also scale, as in Glow.
"""

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import write_errors, write_whole

Floats = npt.NDArray[np.float32]
SHORTEST = 1e-8  # norm below which a vector counts as zero
FLOW_FORMAT = 1
STEPS, WIDTH = 9, 32  # of the paper's public code: 3 levels of 3 steps, hidden layers of 32
BATCH = 32  # vectors of an update
FIRST_ROWS = 8192  # vectors from which ActNorm is initialised
NEW_WEIGHTS = 0.05  # standard deviation of new weights, Glow's
FLAT = 1e-4  # share of the largest deviation below which a dimension has no variance
OF_ENCODER = ("pooling", "architecture", "vocabulary_hash", "updates")  # in a description; differ if the encoder does
# Raised by numpy, zipfile and json for files that are cut off, altered, or of another format.
_DAMAGE = (OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)


def first_dimensions(vectors: Floats, dimension: int, name: str) -> Floats:
    """Return the first dimensions of vectors (N, D), scaled to length 1: (N, dimension).

    A vector with a norm below 1e-8 becomes the zero vector, as in training with ``--matryoshka``.

    Raises:
        UserError: ``dimension`` is not from 1 to D; the message has the encoder's name.
    """
    width = vectors.shape[1]
    if not 1 <= dimension <= width:
        raise UserError(f"--dimension {dimension}: the vectors of {name} have {width} dimensions; give 1 to {width}")
    kept = vectors[:, :dimension]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)  # (N, 1)
    return np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths >= SHORTEST)


@dataclass(frozen=True)
class Whitening:
    """Whitening x -> (x - mu) W (Su et al. 2021, arXiv:2103.15316): the fitted vectors get mean 0, identity covariance.

    W is U Lambda^(-1/2), where U Lambda U^T is the covariance, reduced to its k largest eigenvalues.
    """

    mean: npt.NDArray[np.float64]  # mu, (D,)
    kernel: npt.NDArray[np.float64]  # W, (D, k)

    @classmethod
    def fit(cls, vectors: npt.ArrayLike, dimensions: int | None = None) -> "Whitening":
        """Fit a whitening of (N, D) vectors to ``dimensions`` dimensions (default: all in which they have variance).

        Raises:
            UserError: fewer than two vectors, or fewer than ``dimensions`` dimensions have variance.
        """
        rows = np.asarray(vectors, np.float64)
        if len(rows) < 2:
            raise UserError(f"whitening: needs two or more sentences, got {len(rows)}")
        mean = rows.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(rows, rowvar=False).reshape(rows.shape[1], -1))
        # eigh sorts by increasing variance. Directions whose variance is only a rounding error are left out.
        possible = int((variances > variances[-1] * 1e-9).sum()) if variances[-1] > 0 else 0
        wanted = possible if dimensions is None else dimensions
        if not 1 <= wanted <= possible:
            raise UserError(
                f"whitening to {wanted} dimensions: {len(rows)} sentences have variance in {possible}; give more sentences "
                "or fewer dimensions"
            )
        kept = slice(-1, -wanted - 1, -1)
        return cls(mean, directions[:, kept] / np.sqrt(variances[kept]))

    def __call__(self, vectors: npt.ArrayLike) -> Floats:
        """Whiten (N, D) vectors to (N, k)."""
        return ((np.asarray(vectors, np.float64) - self.mean) @ self.kernel).astype(np.float32)


class ActNorm(nn.Module):
    """Activation normalisation, a shift and a scale for each dimension (Glow, section 3.1).

    z = (x - mean) / deviation * exp(log_scale) + shift. Mean and deviation come from the first vectors and stay fixed, so
    that the first output has mean 0 and variance 1; log_scale and shift are trained from 0.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(dimension)), nn.Parameter(torch.zeros(dimension))
        self.register_buffer("mean", torch.zeros(dimension))
        self.register_buffer("deviation", torch.ones(dimension))
        self.mean: Tensor
        self.deviation: Tensor

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set mean and deviation from these vectors (N, D). A dimension without variance gets the largest deviation."""
        deviation = x.std(dim=0, correction=0)
        greatest = deviation.max() if deviation.max() > 0 else torch.ones(())
        self.mean.copy_(x.mean(dim=0))
        self.deviation.copy_(deviation.where(deviation > FLAT * greatest, greatest))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Transform (N, D); also return log |det| (N,)."""
        z = (x - self.mean) / self.deviation * self.log_scale.exp() + self.shift
        return z, (self.log_scale - self.deviation.log()).sum().expand(len(x))


class Coupling(nn.Module):
    """Affine coupling: the first half of the dimensions sets shift and scale of the second half (Glow, section 3.3).

    z_2 = (x_2 + shift(x_1)) * scale(x_1), with scale = sigmoid(. + 2). A new layer shifts by 0.
    """

    def __init__(self, dimension: int, width: int) -> None:
        super().__init__()
        self.first, self.second = dimension // 2, dimension - dimension // 2
        layers = (nn.Linear(self.first, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.network = nn.Sequential(*layers, nn.Linear(width, 2 * self.second))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw new weights; the last layer's are 0."""
        linear = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        for layer in linear:
            layer.weight.normal_(0.0, NEW_WEIGHTS, generator=generator)
            layer.bias.zero_()
        linear[-1].weight.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Transform (N, D); also return log |det| (N,)."""
        fixed, moved = x.split((self.first, self.second), dim=1)
        shift, scale = self.network(fixed).chunk(2, dim=1)  # (N, D - D // 2) each
        log_scale = F.logsigmoid(scale + 2.0)
        return torch.cat([fixed, (moved + shift) * log_scale.exp()], dim=1), log_scale.sum(dim=1)


class Flow(nn.Module):
    """An invertible map of R^D to itself, in steps of ActNorm, a random permutation of the dimensions, and a coupling.

    ``width`` is the width of the two hidden layers of each coupling. D is 2 or more.

    Attributes:
        origin: what the flow was fitted on, such as the description of the encoder and the hash of the text.
        name: first words of error messages.
    """

    def __init__(self, dimension: int, steps: int = STEPS, width: int = WIDTH) -> None:
        super().__init__()
        if dimension < 2:
            raise UserError(f"flow: needs vectors of two or more dimensions, got {dimension}")
        self.dimension, self.width = dimension, width
        self.norms = nn.ModuleList(ActNorm(dimension) for _ in range(steps))
        self.couplings = nn.ModuleList(Coupling(dimension, width) for _ in range(steps))
        self.register_buffer("orders", torch.arange(dimension).repeat(steps, 1))  # (steps, D)
        self.orders: Tensor
        self.origin: dict[str, Any] = {}
        self.name = "flow"

    @torch.no_grad()
    def initialise(self, x: Tensor, seed: int) -> None:
        """Draw permutations and weights, and initialise each ActNorm on the vectors (N, D) that reach it."""
        generator = torch.Generator().manual_seed(seed)
        steps: Any = zip(self.norms, self.couplings, strict=True)
        for number, (norm, coupling) in enumerate(steps):
            self.orders[number] = torch.randperm(self.dimension, generator=generator)
            coupling.initialise(generator)
            norm.initialise(x)
            x = coupling(norm(x)[0][:, self.orders[number]])[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map vectors (N, D) to z (N, D); also return log |det dz / dx| (N,). A permutation's is 0."""
        log_determinant = x.new_zeros(len(x))
        for norm, order, coupling in zip(self.norms, self.orders, self.couplings, strict=True):
            x, of_norm = norm(x)
            x, of_coupling = coupling(x[:, order])
            log_determinant = log_determinant + of_norm + of_coupling
        return x, log_determinant

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Log p(x) (N,) in nats, by the change of variables: log N(z; 0, I) + log |det dz / dx| (the paper's eq. 4)."""
        z, log_determinant = self(x)
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1) + log_determinant

    def check_encoder(self, description: Mapping[str, Any]) -> None:
        """Raise UserError if a ``description`` of ``CachedEncoder.describe`` is of another encoder than the fitted one's."""
        encoder = self.origin.get("encoder", {})
        fitted = {"dimension": self.dimension, **{name: encoder.get(name) for name in OF_ENCODER}}
        for name, value in fitted.items():
            other = description.get(name)
            if None not in (value, other) and value != other:
                raise UserError(
                    f"{self.name}: was fitted on vectors of {name} {value}, these have {name} {other}; fit another with "
                    "fairseq-clear flow"
                )

    @torch.no_grad()
    def transform(self, vectors: Floats) -> Floats:
        """Map vectors (N, D) to z (N, D), both float32; UserError if the vectors have another dimension."""
        self.check_encoder({"dimension": vectors.shape[1]})
        return self(torch.from_numpy(np.ascontiguousarray(vectors, np.float32)))[0].numpy()

    def normalized(self, vectors: Floats, name: str) -> Floats:
        """As ``transform``, scaled to length 1; ``name`` is the encoder's."""
        return first_dimensions(self.transform(vectors), self.dimension, name)


def fit_flow(
    vectors: npt.ArrayLike,
    *,
    steps: int = STEPS,
    width: int = WIDTH,
    epochs: int = 1,
    learning_rate: float = 1e-3,
    seed: int = 1,
    on_batch: Callable[[int], object] | None = None,
) -> Flow:
    """Fit a flow to vectors (N, D) of unlabelled sentences by maximum likelihood, with Adam, in float32 on the CPU.

    The defaults are the paper's. ``seed`` determines the permutations, weights and order of the vectors; ``on_batch`` is
    called after each update with the number of its vectors.
    """
    rows = torch.from_numpy(np.array(vectors, np.float32))
    if len(rows) < 2:
        raise UserError(f"flow: needs two or more sentences, got {len(rows)}")
    flow = Flow(rows.shape[1], steps, width)
    generator = torch.Generator().manual_seed(seed)
    flow.initialise(rows[torch.randperm(len(rows), generator=generator)[:FIRST_ROWS]], seed)
    optimizer = torch.optim.Adam(flow.parameters(), lr=learning_rate)

    def likelihood(some: Tensor) -> Tensor:
        mean = flow.log_likelihood(some).mean()
        if not math.isfinite(mean.item()):
            raise UserError(f"flow: the likelihood became {mean.item()}; give a smaller --lr")
        return mean

    for _ in range(epochs):
        for chosen in torch.randperm(len(rows), generator=generator).split(BATCH):
            loss = -likelihood(rows[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if on_batch is not None:
                on_batch(len(chosen))
    flow.requires_grad_(False)
    for some in rows.split(FIRST_ROWS):
        likelihood(some)
    return flow


def save_flow(path: str | Path, flow: Flow, origin: Mapping[str, Any]) -> None:
    """Write a flow to a ``.npz`` file, atomically, with ``origin`` (JSON values): what it was fitted on."""
    sizes = {"format": FLOW_FORMAT, "dimension": flow.dimension, "steps": len(flow.norms), "width": flow.width}
    state = {name: value.numpy() for name, value in flow.state_dict().items()}
    described = np.array(json.dumps({**sizes, "origin": dict(origin)}))
    with write_errors(path), write_whole(path) as file:
        np.savez(file, description=described, **state)


def load_flow(path: str | Path) -> Flow:
    """Read a flow that ``save_flow`` wrote; UserError if the file is missing, damaged, or of another format."""
    if not Path(path).is_file():
        raise UserError(f"--flow {path}: no such file; make it with fairseq-clear flow")
    try:
        with np.load(path, allow_pickle=False) as npz:  # a pickle could run code
            state = {name: npz[name] for name in npz.files}
        sizes = json.loads(str(state.pop("description")))
        if sizes["format"] != FLOW_FORMAT:
            raise ValueError(f"format {sizes['format']} instead of {FLOW_FORMAT}")
        flow = Flow(sizes["dimension"], sizes["steps"], sizes["width"])
        flow.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        flow.origin, flow.name = dict(sizes["origin"]), f"--flow {path}"
    except _DAMAGE as error:
        raise UserError(f"--flow {path}: not a complete flow ({one_line(error)}); fit it again") from None
    return flow.requires_grad_(False)
