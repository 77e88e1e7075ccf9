"""The command line: commands are dataclasses whose fields are the flags (``fairseq_clear.cli.flags``)."""

# name -> (module:class, relative to this package; one line of help); only the module of the given command is imported
COMMANDS: dict[str, tuple[str, str]] = {
    "refine": (
        "refine:Refine",
        "train a pretrained encoder on text of your own, show whether it got better, and export it, in one command",
    ),
    "prepare": (
        "prepare:Prepare",
        "turn raw text into a folder that fairseq-train reads: tokenizer, dict.txt, binarized train and valid",
    ),
    "synonyms": ("prepare:Synonyms", "make the table of synonyms for --augment subs and eda, for a data folder"),
    "translate": (
        "prepare:Translate",
        "translate every line of a text with a model of fairseq, CTranslate2, Hugging Face, or your own function",
    ),
    "back-translate": (
        "prepare:BackTranslate",
        "translate every line of a text into another language and back, for paraphrases as views",
    ),
    "mine": (
        "ranking:Mine",
        "find hard negatives for pairs of query and passage: other passages that an encoder ranks near the query",
    ),
    "views": (
        "views:Views",
        "show what a recipe's views look like as text, with what is deleted, moved or substituted marked",
    ),
    "embed": ("embed:Embed", "turn a text file into sentence vectors with a trained checkpoint"),
    "flow": ("embed:FitFlow", "fit BERT-flow to sentence vectors, for --flow of embed, sts and other evaluations"),
    "sts": ("evaluation:Sts", "correlate the cosine of sentence vectors with human similarity scores"),
    "retrieval": (
        "ranking:Retrieval",
        "find the passage that answers a query, with labelled data or with documents of your own; TF-IDF and BM25 too",
    ),
    "senteval": ("evaluation:Senteval", "train classifiers on frozen vectors: SentEval's transfer and probing tasks"),
    "classify": (
        "evaluation:Classify",
        "predict the labels of your own texts, or of 20 Newsgroups, from their vectors",
    ),
    "glue": (
        "glue:Glue",
        "fine-tune a checkpoint on GLUE's tasks with several seeds, or write GLUE's texts for prepare",
    ),
    "import": (
        "conversion:Import",
        "turn a local Hugging Face folder, or fairseq's roberta archive, into a checkpoint with dict.txt and tokenizer",
    ),
    "export": (
        "conversion:Export",
        "write a checkpoint for transformers, sentence-transformers or stock fairseq, and check it",
    ),
    "merge": ("conversion:Merge", "average the weights of two encoders, such as one before and after refining"),
    "plot": ("plot:Plot", "draw training curves, STS by layer, or pairs on a map"),
    "plan": (
        "planning:Plan",
        "estimate memory, bytes sent and hours of a recipe on N GPUs, and choose --encode-chunk-size",
    ),
    "doctor": (
        "doctor:Doctor",
        "show versions, devices, compiled parts and patches of fairseq, for a bug report; status 1 if something is wrong",
    ),
    "user-dir": ("doctor:UserDir", "print the folder of the installed package, for --user-dir of fairseq-train"),
}
