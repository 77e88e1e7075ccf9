"""The command line: one file a command, each with ``add_arguments(parser)`` and ``run(args) -> int``."""

# name -> (module, one line of help); the module is imported only when its command is asked for
COMMANDS: dict[str, tuple[str, str]] = {
    "prepare": (
        "fairseq_clear.cli.prepare",
        "turn raw text into a folder that fairseq-train reads: tokenizer, dict.txt, binarized train and valid",
    ),
    "synonyms": ("fairseq_clear.cli.synonyms", "make the table that --augment subs draws from, for a data folder"),
    "back-translate": (
        "fairseq_clear.cli.back_translate",
        "translate every line of a text into another language and back, for paraphrases as views",
    ),
    "views": (
        "fairseq_clear.cli.views",
        "show what a recipe's views look like as text, with what is deleted, moved or substituted marked",
    ),
    "embed": ("fairseq_clear.cli.embed", "turn a text file into sentence vectors with a trained checkpoint"),
    "sts": ("fairseq_clear.cli.sts", "correlate the cosine of sentence vectors with human similarity scores"),
    "senteval": ("fairseq_clear.cli.senteval", "train classifiers on frozen vectors: SentEval's transfer tasks"),
    "probing": ("fairseq_clear.cli.probing", "find linguistic properties in frozen vectors: SentEval's probing tasks"),
    "captions": ("fairseq_clear.cli.captions", "rank captions and images by each other: SentEval's retrieval task"),
    "topics": ("fairseq_clear.cli.topics", "predict the group of 20 Newsgroups posts from their vectors"),
    "glue": (
        "fairseq_clear.cli.glue",
        "fine-tune a checkpoint on GLUE's tasks, with restarts; write the submission, or GLUE's texts for prepare",
    ),
    "import": (
        "fairseq_clear.cli.import_model",
        "turn a local Hugging Face folder, or fairseq's roberta archive, into a checkpoint with dict.txt and tokenizer",
    ),
    "export": (
        "fairseq_clear.cli.export_model",
        "write a checkpoint for transformers, sentence-transformers or stock fairseq, and check it",
    ),
    "plot": ("fairseq_clear.cli.plot", "draw training curves, reports side by side, STS by layer, or pairs on a map"),
    "plan": (
        "fairseq_clear.cli.plan",
        "estimate memory, FLOPs, bytes sent and hours of a recipe on so many GPUs; --curve draws them for 1 to 4,096",
    ),
    "doctor": (
        "fairseq_clear.cli.doctor",
        "show versions, devices, compiled parts and patches of fairseq, for a bug report; status 1 if something is wrong",
    ),
}
