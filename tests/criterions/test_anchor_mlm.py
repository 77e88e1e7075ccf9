"""The masked language model on DeCLUTR's anchors: one pass or two."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.criterions.test_clear_nt_xent import backward, parts
from tests.objectives import oracles

SPANS = ("--views", "span:anchors=2,positives=2,min=3,max=8", "--augment", "none", "--temperature", "0.2")
JOINT = (*SPANS, "--anchor-mlm", "joint")


def batch(dataset: Any, count: int = 4) -> Any:
    return dataset.collater([dataset[index] for index in range(count)])


@pytest.mark.parametrize("chunks", ["0", "40"])
def test_one_pass_predicts_and_embeds_the_masked_anchors(chunks: str, data_bin: Path) -> None:
    model, criterion, dataset, task = parts(data_bin, *JOINT, "--encode-chunk-size", chunks)
    sample = batch(dataset)
    views = sample["views"]
    anchors = len(views["identity"])
    assert anchors == 8
    assert sample["net_input"] == {}
    masked = views["tokens"][:anchors]
    assert (masked == task.mask_idx).any()
    assert not (views["tokens"][anchors:] == task.mask_idx).any()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    loss, size, log, gradients = backward(model, criterion, sample)
    assert len(calls) == 1
    target = views["target"]
    assert size == target.ne(1).sum()
    # by hand: MLM and embeddings of the same masked anchors, row by row
    total, projections = 0.0, []
    with torch.no_grad():
        for row, tokens in enumerate(views["tokens"]):
            text = tokens[tokens.ne(1)].unsqueeze(0)
            projections.append(model(views=text)[1]["projections"][0])
            if row < anchors:
                wanted = target[row][: text.shape[1]]
                logits = model(text)[0][0][wanted.ne(1)]
                total += F.cross_entropy(logits, wanted[wanted.ne(1)], reduction="sum").item()
    assert log["mlm_loss"].item() == pytest.approx(total, rel=1e-4)
    z = torch.stack(projections)
    z = torch.cat([z[:anchors], z[anchors:].view(anchors, 2, -1).mean(1)])
    expected = oracles.clear_equation_2(z.double().numpy(), 0.2)
    assert log["contrastive_loss"].item() == pytest.approx(expected, rel=1e-4)
    assert loss.item() == pytest.approx(total + expected * size.item() / (2 * anchors), rel=1e-4)
    assert gradients.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
