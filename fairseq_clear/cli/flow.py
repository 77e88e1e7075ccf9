"""``fairseq-clear flow`` fits BERT-flow to the vectors of a text file."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fairseq_clear.cli.flags import Command, OneEncoderFlags, read_text_sentences
from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, hash_file, versions
from fairseq_clear.settings import setting


@dataclass(kw_only=True)
class FitFlow(Command, OneEncoderFlags):
    """Fit a flow that maps the vectors of an encoder to a standard normal distribution (BERT-flow, Li et al. 2020).

    Each line of the text is one sentence; no labels are needed. The encoder is not changed. The flow is only valid for this
    encoder and pooling. To apply it, give --flow to embed, sts or another evaluation.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear flow sentences.txt --encoder checkpoint_best.pt --data-bin data-bin --pooling cls --output flow.npz
fairseq-clear sts --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling cls --flow flow.npz
fairseq-clear embed new.txt --checkpoint checkpoint_best.pt --data-bin data-bin --pooling cls --flow flow.npz --output o.npy"""

    text: Path = setting("UTF-8 text, one sentence per line", metavar="TEXT", positional=True)
    output: Path = setting("file to write", metavar="FILE.npz")
    overwrite: bool = setting("replace FILE.npz", False)
    steps: int = setting("number of flow steps; each is ActNorm, permutation, coupling", 9, least=1, group="flow")
    width: int = setting("width of the hidden layers of the couplings", 32, least=1, group="flow")
    epochs: int = setting("passes over the text", 1, least=1, group="flow")
    learning_rate: float = setting("learning rate of Adam", 1e-3, above=0, flag="--lr", group="flow")
    seed: int = setting(
        "seed of the permutations, the weights and the order of the sentences", 1, least=0, group="flow"
    )

    def run(self) -> int:
        """Encode the text, fit the flow, write it, and print one line."""
        from tqdm import tqdm

        from fairseq_clear.evaluation.postprocessing import fit_flow, save_flow  # takes seconds to import

        if self.output.suffix != ".npz":
            raise UserError(f"--output {self.output}: unknown suffix; give a name that ends in .npz")
        check_output_file(self.output, self.overwrite)
        text_hash, sentences = hash_file(self.text), read_text_sentences(self.text)
        cached = self.load()
        vectors = cached.encode(sentences)
        with tqdm(total=self.epochs * len(sentences), desc="flow", file=sys.stderr, disable=None, leave=False) as bar:
            flow = fit_flow(
                vectors, steps=self.steps, width=self.width, epochs=self.epochs, learning_rate=self.learning_rate,
                seed=self.seed, on_batch=bar.update,
            )  # fmt: skip
        text = {"file": str(self.text), "sha256": text_hash, "sentences": len(sentences)}
        settings = {"epochs": self.epochs, "lr": self.learning_rate, "seed": self.seed}
        origin = {"encoder": cached.describe(), "text": text, "settings": settings, "versions": versions()}
        save_flow(self.output, flow, origin)
        print(
            f"{cached.name}: {len(sentences):,} sentences, dimension {flow.dimension}, {self.steps} steps; wrote {self.output}"
        )
        return 0
