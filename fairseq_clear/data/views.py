"""View sources: which texts form a positive pair, before augmentation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.data.pairs import RawInstance, TokenSource, ViewSource
from fairseq_clear.data.seeding import content_hash
from fairseq_clear.errors import UserError
from fairseq_clear.spec import Knob, check_knobs, check_name, parse_spec

__all__ = ["VIEWS", "RawInstance", "TokenSource", "ViewSource", "ViewSourceKind", "build_view_source"]


class SameText:
    """The sequence, twice: CLEAR section 3.1, SimCSE."""

    positives = 1

    def __init__(self, texts: TokenSource) -> None:
        self.texts = texts
        self.text_lengths = np.stack([texts.sizes, texts.sizes], axis=1)

    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        # not np.asarray: numpy 2 warns of tensors, at every text
        tokens = torch.as_tensor(self.texts[index]).numpy().astype(np.int64, copy=False)
        return [RawInstance(tokens, (tokens,), content_hash(tokens))]


@dataclass(frozen=True)
class ViewSourceKind:
    """An entry of VIEWS: how to build the source, its knobs, and its description."""

    build: Callable[..., ViewSource]
    knobs: Mapping[str, Knob]
    summary: str


VIEWS: dict[str, ViewSourceKind] = {
    "same": ViewSourceKind(SameText, {}, "the text itself, twice (CLEAR, SimCSE)"),
}


def build_view_source(spec: str, texts: TokenSource, *, flag: str = "--views") -> ViewSource:
    """The view source that a spec names.

    Raises:
        UserError: no such source or knob, or a chain where one name is due.
    """
    chains = parse_spec(spec, flag=flag)
    if len(chains) != 1 or len(chains[0]) != 1:
        raise UserError(f"{flag} {spec}: give one view source; valid are {', '.join(VIEWS)}")
    step = chains[0][0]
    check_name(step, VIEWS, flag=flag)
    kind = VIEWS[step.name]
    return kind.build(texts, **check_knobs(step, kind.knobs, flag=flag))
