"""The command line: commands are dataclasses whose fields are the flags (``fairseq_clear.cli.flags``)."""

# name -> (module:class, relative to this package; one line of help); only the module of the given command is imported
COMMANDS: dict[str, tuple[str, str]] = {
    "refine": ("refine:Refine", "train a pretrained encoder on text of your own, compare it, and export it"),
    "prepare": ("prepare:Prepare", "turn raw text into a folder that fairseq-train reads, with tokenizer and dict.txt"),
    "synonyms": ("prepare:Synonyms", "make the table of synonyms for --augment subs and eda, for a data folder"),
    "translate": ("prepare:Translate", "translate every line of a text with a translation model of any kind"),
    "back-translate": ("prepare:BackTranslate", "translate every line into another language and back, for paraphrases"),
    "mine": ("ranking:Mine", "find hard negatives for pairs: other passages that an encoder ranks near the query"),
    "views": ("views:Views", "show a recipe's views as text, with deleted, moved and substituted words marked"),
    "embed": ("embed:Embed", "turn a text file into sentence vectors with a trained checkpoint"),
    "flow": ("flow:FitFlow", "fit BERT-flow to sentence vectors, for --flow of embed, sts and other evaluations"),
    "sts": ("evaluation:Sts", "correlate the cosine of sentence vectors with human similarity scores"),
    "retrieval": ("ranking:Retrieval", "measure how well queries find their passages; with TF-IDF and BM25 too"),
    "senteval": ("evaluation:Senteval", "train classifiers on frozen vectors: SentEval's transfer and probing tasks"),
    "classify": ("evaluation:Classify", "predict the labels of your own texts from their vectors"),
    "glue": ("glue:Glue", "fine-tune a checkpoint on GLUE's tasks with several seeds, or write GLUE's texts"),
    "import": ("conversion:Import", "turn a Hugging Face folder or fairseq's roberta archive into a checkpoint"),
    "export": ("conversion:Export", "write a checkpoint for transformers, sentence-transformers or stock fairseq"),
    "merge": ("conversion:Merge", "average the weights of two encoders, such as one before and after refining"),
    "plot": ("plot:Plot", "draw training curves, STS by layer, or pairs on a map"),
    "plan": ("planning:Plan", "estimate memory, bytes sent and hours on N GPUs, and choose --encode-chunk-size"),
    "doctor": ("doctor:Doctor", "show versions, devices and patches for a bug report; status 1 if something is wrong"),
    "user-dir": ("doctor:UserDir", "print the folder of the installed package, for --user-dir of fairseq-train"),
}
