"""Writes a small Llama with random weights and a tokenizer of its own, for checks of an engine. Needs vLLM's packages.

    python make_model.py FOLDER [--hidden 256] [--layers 4]

The tokenizer is a byte-level BPE, trained on this checkout's pages; the answers mean nothing, and end at their limit only.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

PAGES: Final = Path(__file__).parents[2] / "docs"
N_WORDS: Final = 4096
MAX_TOKENS: Final = 16_384
TEMPLATE: Final = ("{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
                   "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
SPECIAL: Final = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")


def make_tokenizer(folder: Path) -> int:
    """Returns the size of its vocabulary."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=N_WORDS, special_tokens=list(SPECIAL), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([page.read_text(encoding="utf-8") for page in sorted(PAGES.rglob("*.md"))], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "pad_token": SPECIAL[0],
        "model_max_length": MAX_TOKENS, "chat_template": TEMPLATE}), encoding="utf-8")
    return int(tokenizer.get_vocab_size())


def make_weights(folder: Path, n_words: int, hidden: int, layers: int) -> int:
    """Returns the number of parameters."""
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=n_words, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
                         num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128),
                         max_position_embeddings=MAX_TOKENS, bos_token_id=None, eos_token_id=0, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = None  # random weights must not end an answer
    model.save_pretrained(folder)
    return int(sum(one.numel() for one in model.parameters()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    n_parameters = make_weights(given.folder, make_tokenizer(given.folder), given.hidden, given.layers)
    print(f"{given.folder}: {n_parameters / 1e6:.1f} million parameters, random")


if __name__ == "__main__":
    main()
