"""Writes a trained checkpoint as a GGUF file that llama.cpp serves without further options.

Matrices become q8_0, norms stay f32. The tokenizer and the chat template travel in the file.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from training.chat import END, PAD, START, TEMPLATE
from training.topics import REPOSITORY
from training.train import OUT

MODELS = REPOSITORY / "src" / "stayfast" / "engine" / "models"
DESCRIPTIONS = {
    "tiny": "Answers short questions about LLM latency. Trained from scratch for Stayfast; knows nothing else.",
    "draft": "Draft for speculative decoding with stayfast-tiny: same tokenizer, one layer.",
}
SHARPNESS = 4.0
"""Scores are multiplied by this, through the last norm. Greedy answers stay the same, and a client that samples at
temperature 1 gets what temperature 0.25 would give: an answer from the corpus and not a walk between two of them."""
LAYER_NAMES = {
    "attention_norm.weight": "attn_norm.weight",
    "attention.q.weight": "attn_q.weight",
    "attention.k.weight": "attn_k.weight",
    "attention.v.weight": "attn_v.weight",
    "attention.output.weight": "attn_output.weight",
    "feed_norm.weight": "ffn_norm.weight",
    "gate.weight": "ffn_gate.weight",
    "up.weight": "ffn_up.weight",
    "down.weight": "ffn_down.weight",
}


def gguf_name(name: str) -> str:
    """The name llama.cpp expects for one of our weights."""
    if name.startswith("blocks."):
        _, layer, rest = name.split(".", 2)
        return f"blk.{layer}.{LAYER_NAMES[rest]}"
    return {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]


def write_description(writer: gguf.GGUFWriter, name: str, shape: dict[str, Any]) -> None:
    """General facts and the sizes of the architecture."""
    writer.add_name(f"stayfast-{name}")
    writer.add_author("The Stayfast authors")
    writer.add_license("apache-2.0")
    writer.add_description(DESCRIPTIONS[name])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape["vocabulary"])
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["hidden"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["heads"])
    writer.add_rope_dimension_count(shape["width"] // shape["heads"])
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_layer_norm_rms_eps(shape["epsilon"])


def write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Path) -> None:
    """Vocabulary, merges, special tokens and the chat template."""
    saved = json.loads(tokenizer.read_text(encoding="utf-8"))
    ids: dict[str, int] = saved["model"]["vocab"]
    special = {PAD, START, END}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in saved["model"]["merges"]])
    writer.add_bos_token_id(ids[PAD])
    writer.add_eos_token_id(ids[END])
    writer.add_pad_token_id(ids[PAD])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def write_weights(writer: gguf.GGUFWriter, weights: dict[str, torch.Tensor]) -> None:
    """Matrices in blocks of 32 eight-bit numbers, vectors as they are."""
    for name, weight in weights.items():
        values: npt.NDArray[np.float32] = weight.to(torch.float32).numpy()
        if name == "norm.weight":
            values = values * np.float32(SHARPNESS)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)


def export(name: str) -> Path:
    """Turns the checkpoint `name` into its GGUF file."""
    checkpoint = torch.load(OUT / f"{name}.pt", weights_only=True)
    MODELS.mkdir(parents=True, exist_ok=True)
    path = MODELS / f"stayfast-{name}-q8_0.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    write_description(writer, name, checkpoint["shape"])
    write_tokenizer(writer, OUT / "tokenizer.json")
    write_weights(writer, checkpoint["weights"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    """Exports what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(DESCRIPTIONS), nargs="+")
    for name in parser.parse_args().model:
        path = export(name)
        print(f"{path.relative_to(REPOSITORY)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
