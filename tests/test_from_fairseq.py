"""docs/from-fairseq.md: its files are written and its commands run, in their order, as a reader would."""

import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_clear.text.tokenizers import Gpt2Tokenizer
from fairseq_clear.text.vocabulary import build_dictionary
from tests import zygote
from tests.conftest import ROOT, free_port, load_file, run
from tests.faults.commands import updates
from tests.interop.folders import NEEDS_HF
from tests.interop.test_archive import write_archive
from tests.preparation.corpora import gpt2_files
from tests.test_quickstart import shell

pytestmark = [pytest.mark.slow, NEEDS_HF]

PAGE = (ROOT / "docs" / "from-fairseq.md").read_text()
BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```', flags=re.M | re.S)
SECTIONS = {part.splitlines()[0]: BLOCK.findall(part) for part in PAGE.split("\n## ")[1:]}
GLOO = "--cpu --distributed-backend gloo"
UPDATES = 3
UNKNOWN = 3  # fairseq's id of <unk>
LABELLED = "Back to stock fairseq"
# srun of two tasks on this machine. Both are the first of their node: of the second, fairseq itself would use GPU 1.
STUBS = {
    "srun": "#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\n"
    "export SLURM_JOB_ID=$$ SLURM_NNODES=1 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_STEP_NODELIST=here\n"
    'SLURM_PROCID=1 SLURM_LOCALID=0 "$@" & other=$!\nSLURM_PROCID=0 SLURM_LOCALID=0 "$@" && wait $other\n',
    "scontrol": "#!/usr/bin/env bash\necho localhost\n",
}


class Reader:
    """Someone who follows the page in a folder of their own; every section needs the ones before it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, dict[str, str]()

    def read(self, section: str) -> str:
        """Follow the page up to the end of a section; returns what the section's commands print."""
        for title, blocks in SECTIONS.items():
            if title == LABELLED:
                self.write_labels()
            if title not in self.output:
                self.output[title] = ""  # a section that fails is not read again
                self.output[title] = "".join(self.follow(*block) for block in blocks)
            if title == section:
                return self.output[title]
        raise KeyError(section)

    def write_labels(self) -> None:
        """The files that the section on fine-tuning takes for granted."""
        for split, count in (("train", 64), ("valid", 16)):
            lines = [line for line in (self.folder / f"{split}.spm").read_text().splitlines() if line][:count]
            (self.folder / f"{split}.input0").write_text("\n".join(lines) + "\n")
            (self.folder / f"{split}.label").write_text("".join(f"{len(line) % 2}\n" for line in lines))

    def follow(self, language: str, title: str, text: str) -> str:
        """Write the file, or run the commands, of a block, with fewer updates."""
        text = re.sub(r"(--max-update |max_update: )\d+", rf"\g<1>{UPDATES}", text)
        if language == "diff":
            return self.follow("bash", "", patched(stock_command(), text))
        if title:
            (self.folder / title).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / title).write_text(text)
        if language == "sh":
            flags = f"{GLOO} --distributed-port {free_port()}"
            (self.folder / title).write_text(text.replace("--distributed-port 29500", flags))
            text = f"bash -n {title} && timeout 120 bash {title}"
        elif language == "python" and not title:
            (self.folder / "script.py").write_text(f"{text}print(states.shape)\n")
            text = 'python -c "$(cat script.py)"'
        elif language != "bash":
            return ""
        return shell(self.folder, f"set -e\n{text}", PYTHONWARNINGS="ignore")  # stock fairseq warns


def stock_command() -> str:
    ((language, _, text),) = SECTIONS["A stock run"]
    assert language == "bash"
    return text


def patched(text: str, diff: str) -> str:
    """The text with the changes of the first lines that a diff names."""
    before = "".join(line[1:] for line in diff.splitlines(True) if line[0] != "+")
    after = "".join(line[1:] for line in diff.splitlines(True) if line[0] != "-")
    assert text.startswith(before)
    return text.replace(before, after)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A checkout, as far as the commands see, with texts, labels, and an archive like roberta.base's."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("fairseq_clear", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    documents = load_file(ROOT / "scripts/sample.py").documentation()[::9]
    for split, part in (("train", documents[:-20]), ("valid", documents[-20:])):
        (folder / f"{split}.txt").write_text("\n\n".join(part) + "\n")
    write_archive(folder / "roberta.base", *gpt2_files(folder), max_positions=130)
    with tarfile.open(folder / "roberta.base.tar.gz", "w:gz") as tar:
        tar.add(folder / "roberta.base", "roberta.base")
    build_dictionary(Gpt2Tokenizer(*gpt2_files(folder))).save(str(folder / "gpt2_dict.txt"))
    (folder / "bin").mkdir()
    commands = "fairseq-clear fairseq-train fairseq-preprocess fairseq-validate fairseq-hydra-train".split()
    zygote.write_scripts(folder / "bin", *commands)
    for name, text in STUBS.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return Reader(folder)


def trained(reader: Reader, *names: str) -> bool:
    folders = [reader.folder / "checkpoints" / name for name in names]
    return all(updates(folder) == UPDATES for folder in folders)


def test_data(reader: Reader) -> None:
    reader.read("The data")
    lines = (reader.folder / "train.txt").read_text().splitlines()
    for folder in ("data-bin", "gpt2-bin"):
        ids = load_indexed_dataset(str(reader.folder / folder / "train"), None)
        assert [len(text) == 1 for text in ids] == [not line for line in lines], "blank lines are kept"
        assert not any((text == UNKNOWN).any() for text in ids), folder


def test_four_flags(reader: Reader) -> None:
    title = "The same with four flags changed"
    log = reader.read(title)
    assert trained(reader, "roberta", "clear", "sentences")
    assert log.count("done training") == 2 and "views      same, augmented by del-word" in log
    (language, _, diff), *_ = SECTIONS[title]
    lines = diff.splitlines()
    removed, added = ({word for line in lines if line[0] == sign for word in line[1:].split()} for sign in "-+")
    assert language == "diff" and {flag for flag in added - removed if flag.startswith("--")} == {"--user-dir"}
    assert removed - added == {"checkpoints/roberta", "masked_lm", "roberta_base"}


def test_start_from_stock_weights(reader: Reader) -> None:
    log = reader.read("Start from a stock checkpoint")
    assert trained(reader, "continued", "refined")
    assert "the checkpoint has no <del>" in log and "largest difference to stock fairseq's roberta" in log


def test_shards(reader: Reader) -> None:
    log = reader.read("Sharded data")
    assert "shards/0/train" in log and "shards/1/train" in log


def test_name_the_tokenizer(reader: Reader) -> None:
    log = reader.read("Name the tokenizer")
    lines = (reader.folder / "valid.txt").read_text().splitlines()
    assert np.load(reader.folder / "vectors.npy").shape == (len(lines), 64)
    assert "text 1" in log and (reader.folder / "encoder" / "modules.json").is_file()


def test_back_to_stock(reader: Reader) -> None:
    log = reader.read(LABELLED)
    assert "valid on 'valid' subset" in log and "torch.Size([1, " in log
    assert (reader.folder / "checkpoints" / "tuned" / "checkpoint_last.pt").is_file()
    stock = reader.folder / "stock"
    assert "fairseq_clear" not in (stock / "model.pt").read_bytes().decode(errors="ignore")
    code = re.search(r"```python\n(.*?)```", (stock / "README.md").read_text(), re.S)[1].replace("FOLDER", str(stock))
    assert "torch.Size([1, " in run(sys.executable, "-c", f"{code}\nprint(states.shape)").stdout, "the card"


def test_hydra(reader: Reader) -> None:
    log = reader.read("With hydra")
    assert "augmented by del-span:spans=3,ratio=0.1" in log and trained(reader, "hydra", "spans")


def test_batch_scripts(reader: Reader) -> None:
    log = reader.read("In your own batch script")
    assert log.count("workers    2 on CPUs") == 2 and log.count("done training") == 2
    assert trained(reader, "slurm", "preemptible")
