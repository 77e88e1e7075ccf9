"""``fairseq-clear mine``: finds hard negatives for pairs of a query and a passage."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.cli.flags import PAIRS, Command, OneEncoderFlags, PairFlags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.retrieval_data import MiningSettings
from fairseq_clear.files import corpus_files, hash_file, versions, write_json
from fairseq_clear.output_folder import check_destination, output_folder
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.mining import MinedNegatives

MINE_JSON = "mine.json"


@dataclass(kw_only=True)
class Mine(Command, MiningSettings, PairFlags, OneEncoderFlags):
    """Find hard negatives for pairs of a query and a passage: other texts whose vector is near to that of the query.

    A pair's negatives come from the passages of all pairs and from --candidates. Texts equal to the query or to one of its
    passages are left out. The search is exact.

    DEST gets query.txt, positive.txt, negative1.txt and so on, with a line for each pair that has enough negatives, and
    mine.json with settings, counts and hashes. The commands that follow, for training, are printed. If the command fails, DEST
    is not written.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear mine --pairs pairs.tsv --encoder checkpoint_best.pt --data-bin data-bin --margin 0.05 --dest mined
fairseq-clear mine --queries q.txt --passages p.txt --candidates corpus.txt --encoder bert/model.pt --data-bin bert-bin \\
    --first-rank 11 --last-rank 60 --negatives 3 --sample random --dest mined"""

    candidates: tuple[Path, ...] = setting(
        "further texts to choose negatives from: .txt with a text per line, or .jsonl, also .gz and .xz, or folders",
        (),
        group=PAIRS,
    )
    text_field: str = setting("name of the field of a .jsonl record of --candidates", "text", group=PAIRS)
    dest: Path = setting("folder to create; must not exist yet", metavar="DEST")
    overwrite: bool = setting("replace DEST if it is a folder of this command", False)

    def run(self) -> int:
        """Mine the negatives, write the folder, and print counts and the next commands."""
        from fairseq_clear.evaluation.embedding_files import read_sentences
        from fairseq_clear.evaluation.mining import mine_negatives  # takes seconds to import
        from fairseq_clear.evaluation.sentence_encoder import choose_device

        self.check()
        check_destination(self.dest, self.overwrite)
        device = choose_device(self.device)
        given = self.read_pairs()
        if given is None:
            raise UserError("no pairs: give --pairs, or --queries with --passages")
        name, pairs, hashes = given
        if not pairs:
            raise UserError(f"{name}: holds no pair")
        files = corpus_files(self.candidates)
        hashes |= {file.path.name: hash_file(file.path) for file in files}
        further = [text for file in files for text in read_sentences(file.path, self.text_field)]
        cached = self.load()
        with output_folder(self.dest, self.overwrite) as folder:
            mined = mine_negatives(
                cached, pairs, further, self, folder=folder, device=device,
                query_prefix=self.query_prefix, passage_prefix=self.passage_prefix,
            )  # fmt: skip
            report = self.describe(mined, cached, hashes) | {"files": mined.write(folder)}
            write_json(folder / MINE_JSON, report, flag="--dest")
        print(table(report))
        print(self.next_commands())
        return 0

    def describe(self, mined: "MinedNegatives", encoder: "CachedEncoder", hashes: dict[str, str]) -> dict[str, Any]:
        """Content of ``mine.json``, as JSON values."""
        settings = {item.name: getattr(self, item.name) for item in fields(MiningSettings)}
        settings |= {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        counts = {"pairs": len(mined.pairs), "kept": len(mined.kept), "candidates": len(mined.texts)}
        means = {
            "positive": float(mined.positive_similarities.mean()),
            "negatives": mined.similarities.mean(axis=0).tolist(),
        }
        return {
            "settings": settings,
            "encoder": encoder.describe(),
            "counts": counts,
            "mean_similarity": means,
            "mean_rank": mined.ranks.mean(axis=0).tolist(),
            "inputs": hashes,
            "versions": versions(),
        }

    def next_commands(self) -> str:
        """The commands that train on the negatives, with the choices that are left in angle brackets."""
        names = ["positive", *(f"negative{number + 1}" for number in range(self.negatives))]
        files = " ".join(f"{name}={shlex.quote(f'{self.dest / name}.txt')}" for name in names)
        query = shlex.quote(str(self.dest / "query.txt"))
        return (
            "next:\n"
            f"  fairseq-clear prepare {query} --paraphrase {files} --document-start . --dest <data-bin> <tokenizer>\n"
            "  fairseq-train <data-bin> --user-dir fairseq_clear --task clear_lm --criterion clear_nt_xent "
            f"--views paraphrase:original,positive --hard-negatives {','.join(names[1:])} --sample-break-mode eos ..."
        )


def table(report: Mapping[str, Any]) -> str:
    """Counts, and the mean similarity and rank of each column."""
    counts, similarity = report["counts"], report["mean_similarity"]
    dropped = counts["pairs"] - counts["kept"]
    lines = [
        f"pairs {counts['pairs']:,}; kept {counts['kept']:,}; dropped {dropped:,}, with fewer than "
        f"{report['settings']['negatives']} negatives; candidates {counts['candidates']:,}",
        f"{'':<12}{'mean similarity':>16}{'mean rank':>11}",
        f"{'positive':<12}{similarity['positive']:>16.3f}",
    ]
    for number, (cosine, rank) in enumerate(zip(similarity["negatives"], report["mean_rank"], strict=True), 1):
        lines.append(f"{f'negative{number}':<12}{cosine:>16.3f}{rank:>11.1f}")
    return "\n".join(lines)
