"""Mistakes of users of every command: exit status 2, one line that names the flag or the file, nothing written.

Those of ``glue``, which need a finished run, are in its own module.
"""

import shlex
from pathlib import Path

import pytest

from fairseq_clear.evaluation.postprocessing import Flow, save_flow
from tests.conftest import rejected

FILES = {
    "pairs.tsv": b"bada kefe\tbada kefe\t5\nligi\tligi moho\t3\nnuju\tpala\t1\nreme bada\treme sine\t2\n",
    "two.tsv": b"bada kefe\tbada kefe\nligi\tligi moho\nnuju\tpala\n",
    "empty.tsv": b"\n",
    **dict.fromkeys(("blank", "e"), b""),
    "alone.txt": b"a\n\nb\n",
    "bad.txt": b"a\n\xff\n",
    "c.jsonl": b'{"text": "a"}\n{"title": "b"}\n',
    "film.json": b'{"film": ["movie"]}',
    "ba.json": b'{"ba": ["da"]}',
    "list.json": b"[1]",
    "words.json": b'{"film": "movie"}',
    "numbers.json": b'{"film": ["movie", 1]}',
    "words/dict.txt": b"ba 1\nda 1\n",
    "words/clear.json": b'{"format": 1, "tokenizer": {"kind": "none", "files": []}}',
    "CoLA/train.tsv": b"gj04\t1\t\ta b\n",
    "w.vec": b"a 1 0\nb 0 1\n",
    **dict.fromkeys(("taken.json", "taken.npy", "taken.npz", "train.log"), b"old"),
    **dict.fromkeys(("data/train.idx", "exported/fairseq_clear.json", "10:30/dict.txt"), b""),
}
TOYS = "tests.evaluation.toys"
LETTERS = f"--encoder {TOYS}:Letters"
ENCODER = "CHECKPOINT --data-bin DATA --tokenizer whitespace"
THIN = "clear/base_256gpu ++model.encoder_layers=1"
TRANSLATE = "translate --input alone.txt --output new --model m"
# Command -> flags, of which the later ones win -> what the line must contain.
MISTAKES = {
    "": {
        "": "error: the following arguments are required: COMMAND",
        "dance": "argument COMMAND: invalid choice: 'dance'",
    },
    "prepare": {"": "prepare: error: the following arguments are required: INPUT, --dest"},
    "prepare alone.txt --dest new": {
        "--shards x": "argument --shards: invalid int value: 'x'",
        "--paraphrase de=": "'de=' is not NAME=FILE",
        "--vocab-size 99 --spm-model m": "argument --spm-model: not allowed with argument --vocab-size",
        "--language de": "--language de: has no effect without --split-sentences; add it",
        "--title-field name": "--title-field name: has no effect, as no input is .jsonl; leave it out",
        "--dest exported --overwrite": "exported: has no train.idx or shard0/train.idx, so this command did not make it",
    },
    "synonyms --data-bin DATA": {"--source film.json": "clear.json is missing"},
    "synonyms --data-bin words": {
        "--source film.json": "none of its 1 words is in the vocabulary",
        "--source gone.json": "gone.json: cannot read it",
        "--source bad.txt": "bad.txt: not valid JSON",
        "--source list.json": "--source list.json: holds a list; give a JSON object of word",
        "--source words.json": "'film' has 'movie', not a list of words; give a JSON object of word",
        "--source numbers.json": "'film' has ['movie', 1], not a list of words",
        "--source ba.json --output /proc/s.npz": "--output /proc/s.npz: cannot write it",
    },
    f"back-translate --input alone.txt --output new --device cpu --forward {TOYS}:Copying --backward {TOYS}:Copying": {
        "--input bad.txt": "bad.txt:2: byte 0xff",
        "--input blank": "--input blank: ",
        "--output no/out": "--output no/out: there is no folder",
        "--output alone.txt": "--output alone.txt: is the input",
        "--output data --overwrite": "--output data: is a folder; give the name of a file",
        "--device tpu9": "device tpu9: no such device",
        "--fp16": "--fp16: needs a GPU",
        "--copies 6": "--copies and --sampling",
        "--max-len-a inf": "--max-len-a inf: must be a finite number",
        "--sampling --beam 2": "argument --beam: not allowed with argument --sampling",
        "--forward nowhere": "--forward nowhere: holds no model",
    },
    TRANSLATE: {
        "--output new.txt.gz": "--output new.txt.gz: is written uncompressed; give a name without .gz",
        "--beam 0": "--beam 0: must be",
        "--model-languages eng_Latn": "is not SOURCE:TARGET",
    },
    "glue text --glue-dir . --tasks CoLA RTE --dest new": {"": "RTE/train.tsv: "},
    f"embed alone.txt --output new.npy --checkpoint {ENCODER}": {
        "more.txt": "embed: error: unrecognized",
        "--output taken.npy": "exists already; add --overwrite",
        "--output out.csv": "unknown suffix",
        "--batch-size 0": "--batch-size 0: must be 1 or more",
        "--dimension 0": "--dimension 0: must be 1 or more",
        "--device mps": "device mps: no such device; give cpu, cuda or cuda:N",
        "--text-field body": "--text-field body: has no effect, as no input is .jsonl; leave it out",
        f"--output {300 * 'x'}.npy": "File name too long",
        "--prompt caf\udce9": "'caf\\udce9': is not UTF-8",
        "--dimension 33": "--dimension 33: the vectors have 32 dimensions; give 1 to 32",
    },
    f"embed bad.txt --checkpoint {ENCODER}": {"": "bad.txt:2: byte 0xff"},
    f"embed ./e --checkpoint {ENCODER}": {"": "e: holds no line; give a text file with one sentence a line"},
    f"embed c.jsonl --checkpoint {ENCODER}": {
        "--output new.npy": "c.jsonl:2: no field 'text' (fields: title); name the right one with --text-field"
    },
    f"embed gone.txt --checkpoint {ENCODER}": {"": "cannot read it"},
    "embed alone.txt --checkpoint CHECKPOINT --data-bin DATA": {"": "add --tokenizer whitespace"},
    "export CHECKPOINT --data-bin DATA --dest new": {
        f"--format {form}": "so its tokenizer is not known; add --tokenizer" for form in ("hf", "sentence-transformers")
    },
    f"export {ENCODER} --dest new": {
        "--format hf --normalize": "--normalize: belongs to --format sentence-transformers",
        "--format hf --pooling best": "no such pooling",
        "--format hf --dimension 8": "--dimension: belongs to --format sentence-transformers",
        "--format sentence-transformers --dimension 8 --normalize": "--normalize: not allowed with argument --dimension",
        "--format sentence-transformers --dimension 33": "have 32 dimensions; give 1 to 32",
        "--format fairseq --scores nowhere.json": "nowhere.json: cannot read it",
        "--format fairseq --dest data --overwrite": "data: has no fairseq_clear.json",
        "--format fairseq --dest DATA/.. --overwrite": "which would be replaced; move it, or give another --dest",
    },
    "import w.vec --dest new": {"": "w.vec: is a file; give the folder that it is in"},
    "import roberta-base --dest new": {"": "roberta-base: no such folder; give a local Hugging Face folder"},
    f"sts --sts-file pairs.tsv {LETTERS}": {
        "--output taken.json": "--output taken.json: ",
        "--data no": "no: has none of STS12",
        "--whitening-dimensions 2": "--whitening-dimensions 2: ",
        "--whitening c.jsonl": "--whitening c.jsonl: ",
        "--tasks STS12": "--data: ",
        f"--encoder {TOYS}:broken": f"{TOYS}:broken: has no method encode",
        f"--encoder {TOYS}:Constant": f"{TOYS}:Constant, pairs: ",
    },
    f"sts --sts-file pairs.tsv --encoder {ENCODER}": {
        "--dimension 33": "have 32 dimensions; give 1 to 32",
        "--dimension 3 --whitening alone.txt": "not allowed with argument",
    },
    "sts --sts-file pairs.tsv --encoder CHECKPOINT --data-bin DATA": {
        "": "add --tokenizer whitespace",
        "--data-bin gone": "--data-bin gone: there is no folder gone",
    },
    "sts --sts-file pairs.tsv --encoder w.vec": {
        "--pooling mean": "--pooling mean: --encoder w.vec",
        "--flow wide.npz": "wide.npz: was fitted on vectors of dimension 7, these have dimension 2; fit another with",
        "--flow wide.npz --dimension 3": "not allowed with argument",
    },
    f"sts {LETTERS}": {"": "--data: "},
    f"classify --train pairs.tsv {LETTERS}": {"--seed 4294967296": "--seed 4294967296: must be 4294967295 or less"},
    f"senteval --data . {LETTERS}": {
        "--seeds -1": "--seeds -1: give one or more different seeds, from 0",
        "--preset prototype --dropout 0.5": "--dropout 0.5: has no effect without a hidden layer",
        "--preset logistic --hidden 5": "--hidden 5: has no effect on logistic regression",
    },
    "flow alone.txt --encoder w.vec": {
        "--output taken.npz": "taken.npz: exists already; add --overwrite",
        "--output flow.pt": "flow.pt: unknown suffix; give a name that ends in .npz",
    },
    "flow empty.tsv --encoder w.vec": {"--output new.npz": "empty.tsv: holds no sentence"},
    f"retrieval {LETTERS} --output r.json": {
        "": "--data, --pairs or --documents",
        "--pairs two.tsv --count 3": "--count 3: ",
        "--pairs two.tsv --split dev": "--split dev: belongs to --data",
        "--pairs two.tsv --title-field t": "--title-field t: belongs to --documents",
        "--documents alone.txt --count 1": "--count 1: ",
        "--documents alone.txt": "--documents: 0 of them",
        "--documents no.txt": "no.txt: ",
        "--pairs two.tsv --device gpu": "device gpu: ",
        "--pairs two.tsv --documents alone.txt": "argument --documents: ",
        "--pairs two.tsv --baselines bm52": "'bm52'",
    },
    f"mine {LETTERS} --dest mined": {"": "--pairs"},
    f"mine --pairs two.tsv {LETTERS} --dest mined": {
        "--pairs empty.tsv": "empty.tsv: ",
        "--margin 3": "--margin 3.0: ",
        "--dest data --overwrite": "data: has no mine.json",
        "--candidates no.txt": "no.txt: ",
        "--margin 2": "none of the 3 pairs",
    },
    "plot curves train.log": {
        "--output a.png --bars": "plot curves: error: unrecognized",
        "--output taken.png": "--output taken.png: exists already",
        "--output a.gif": "--output a.gif: give a name that ends with .png, .svg, .pdf",
        "--output a.png --labels a b": "--labels a b: give a different name for each of 1 entries",
    },
    f"plot layers --sts-file pairs.tsv {LETTERS} --output a.png": {"": f"{TOYS}:Letters: has no layers to compare"},
    "views --data-bin DATA --tokenizer whitespace": {
        "--augment shout": "choose from del-word, del-span, reorder, subs, slice, mask-span, eda, none\n",
        "--views sideways": "choose from same, paraphrase, titles, neighbor, cloze, span\n",
        "--split dev": "Dataset not found: dev",
        "--start 120": "--start 120: ",
        "--count 0": "--count 0: ",
        "--epoch 0": "--epoch 0: ",
        "--text ' '": "--text: ",
        "--text ba --views paraphrase:original,de": "reads texts aligned with the lines of --data-bin; leave --text out",
    },
    "plan --config clear/base --gpus 1": {"": "--config clear/base: no such recipe"},
    f"plan --gpus 1 --config {THIN}": {
        "model.layers=1": "Key 'layers'",
        "=": f"--config {THIN} =:",
        "criterion._name=sentence_prediction": "criterion._name sentence_prediction: its cost cannot be estimated",
        "+criterion.guide=g.pt": "criterion.guide g.pt: its cost cannot be estimated",
        "optimizer._name=adafactor": "optimizer._name adafactor",
        "model._name=clear_hf": "model._name clear_hf: only fairseq's layers are counted; plan a clear_roberta",
        "++dataset.max_tokens=1024": "dataset.max_tokens 1024: ",
        "task.augment=del-wrd": "there is no 'del-wrd'",
        "~dataset.batch_size": "dataset.batch_size: the recipe has none; give --global-batch",
        "~optimization.max_update": "optimization.max_update: the recipe has none",
        "--gpus 3 --global-batch 8": "--global-batch 8: is not a multiple of --gpus 3",
        "--mfu 45": "--mfu 45.0: must be 1 or less",
        "--memory 0.1": "--memory 0.1: 32 texts need",
        "--data-bin nowhere": "nowhere/dict.txt does not exist",
        "--data-bin 10:30": "10:30: fairseq separates data folders by ':'; rename the folder",
    },
    "views --data-bin DATA": {"--augment eda:ops=rs-rd": "clear.json is missing: fairseq-preprocess does not record"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory, which no command may change."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, content in {**FILES, "taken.png": b"old"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    save_flow(folder / "wide.npz", Flow(7, 2), {})
    return folder


@pytest.mark.parametrize(
    ("command", "flags"), [(command, flags) for command in MISTAKES for flags in MISTAKES[command]], ids=str
)
def test_one_line_and_nothing_written(command, flags, folder, checkpoint, data_bin, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    line = f"{command} {flags}".replace("CHECKPOINT", str(checkpoint)).replace("DATA", str(data_bin))
    rejected(capsys, shlex.split(line), MISTAKES[command][flags])
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
