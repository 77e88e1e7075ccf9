# An image with the exact versions of requirements.txt; not built by the project's tests.
# CPU:  docker build -t fairseq_clear .
# CUDA: docker build -t fairseq_clear --build-arg TORCH=cu130 .    (a build that pytorch.org lists for the torch of requirements.txt)
# Run:  docker run --rm -v "$PWD":/work [--gpus all] fairseq_clear fairseq-clear refine notes --from all-MiniLM-L6-v2 --dest refined
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

# the compiler builds fairseq, and torch.compile needs it later
RUN apt-get update && apt-get install -y --no-install-recommends build-essential make && rm -rf /var/lib/apt/lists/*

ARG TORCH=cpu
WORKDIR /opt/fairseq_clear
COPY . .
RUN PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/${TORCH} scripts/install.sh
ENV PATH=/opt/fairseq_clear/.venv/bin:${PATH}

WORKDIR /work
CMD ["fairseq-clear", "doctor"]
