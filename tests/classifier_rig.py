"""A small trained classifier in a file, over the static embedder."""

from pathlib import Path

import numpy as np

from stayfast.policy.classify.training import train_classifier
from stayfast.stores.classifier_file import StoredClassifier, TrainedOn, write_classifier
from stayfast.stores.static_embedder import load_static_embedder

EMBEDDER = load_static_embedder()
EXAMPLES = {
    "card": ["where is my card", "my card has not arrived", "when will the new card come", "the card is late",
             "track my card", "card delivery time", "has my debit card been posted", "i still wait for my card"],
    "cash": ["the cash machine took too much", "withdraw cash abroad", "atm gave me no cash", "how much cash can I withdraw",
             "is there a fee for cash", "cash withdrawal failed", "where can I get cash", "atm limits for cash"],
    "code": ["write a python function", "fix this javascript bug", "explain this sql query", "refactor my java class",
             "why does my rust program crash", "write unit tests in go", "review this code", "debug the compiler error"],
}


def write_small_classifier(path: Path, *, precision: float = 0.0, embedder: str = EMBEDDER.id) -> Path:
    """Three labels. embedder: the id that the file names."""
    texts = [text for each in EXAMPLES.values() for text in each]
    rows = np.repeat(np.arange(len(EXAMPLES)), len(EXAMPLES["card"]))
    trained = train_classifier([EMBEDDER.embed(texts)], rows, list(EXAMPLES), precision=precision)
    write_classifier(path, StoredClassifier(trained.heads, trained.rule, (embedder,), TrainedOn("0" * 64, len(texts), 1)))
    return path
