"""A static embedder: the vector of a text is the mean of one vector for each token, of length 1.

Problem: an encoder takes 2 ms of CPU for a question, more than a step before each request may use. Rule: look up one vector
for each token in a table, and average them; 0.03 ms for a question of 20 tokens. The table and its tokenizer are data files
of the package wordllama (32,000 tokens, 256 dims, float16, MIT). They are only read: its code downloads at the first use.
Source: Arora et al., "A simple but tough-to-beat baseline for sentence embeddings" (2017); the table is that of WordLlama.
When wrong: word order and negation hardly move the vector. The table was trained on English.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from stayfast.stores.embedder import STATIC_INSTALL_HINT, NoEmbedder
from stayfast.stores.onnx_embedder import digest_files
from stayfast.stores.safetensors import map_safetensors

Floats = NDArray[np.float32]
PACKAGE: Final = "wordllama"
_WEIGHTS: Final = Path("weights") / "l2_supercat_256.safetensors"
_TOKENIZER: Final = Path("tokenizers") / "l2_supercat_tokenizer_config.json"


class StaticEmbedder:
    """Texts to vectors, synchronously on the calling thread. Thread-safe.

    A longer text is cut at `max_chars`, so that no text takes more than 1 ms.
    """

    __slots__ = ("_table", "_tokenizer", "id", "max_chars", "n_dims")

    def __init__(self, table: NDArray[np.floating[Any]], tokenizer: Tokenizer, name: str, *, max_chars: int = 2_000) -> None:
        """table: [tokens, n_dims], of float16 or float32. name: identifies both files."""
        self._table = table
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.max_chars = max_chars
        self.n_dims = int(table.shape[1])
        self.id = f"{name}-{max_chars}"

    def is_whole(self, text: str) -> bool:
        """Whether the vector covers all of a text."""
        return len(text) <= self.max_chars

    def embed(self, texts: Sequence[str]) -> Floats:
        """float32 [len(texts), n_dims], each row of length 1. A text without tokens has the vector of the start mark."""
        found = np.empty((len(texts), self.n_dims), dtype=np.float32)
        for number, text in enumerate(texts):
            cut = text[:self.max_chars]
            ids = self._tokenizer.encode(cut, add_special_tokens=False).ids or self._tokenizer.encode(cut).ids
            row: Floats = self._table[ids].mean(axis=0, dtype=np.float32)
            found[number] = row / np.sqrt(row @ row)
        return found

    def __repr__(self) -> str:
        return f"<StaticEmbedder {self.id}: {self.n_dims} dims>"


def load_static_embedder() -> StaticEmbedder:
    """The embedder from the installed weights. Blocks for 0.1 s. Raises NoEmbedder with advice."""
    folder = installed_static_weights()
    weights, tokenizer = folder / _WEIGHTS, folder / _TOKENIZER
    try:
        table = next(iter(map_safetensors(weights).values()))
        name = f"static-{digest_files(weights, tokenizer)[:16]}"
        return StaticEmbedder(table, Tokenizer.from_file(str(tokenizer)), name)
    except Exception as error:  # a damaged file can raise anything in the libraries
        raise NoEmbedder(f"{folder} cannot be used as a static embedder: {error}") from error


def installed_static_weights() -> Path:
    """The folder of the installed package, which is not imported. Raises NoEmbedder."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise NoEmbedder(f"no weights of the static embedder are installed: {STATIC_INSTALL_HINT}")
    return Path(found.origin).parent
