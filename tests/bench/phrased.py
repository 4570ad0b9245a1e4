"""A small set of questions with known answers, and vectors for any text without a model."""

from hashlib import blake2b
from itertools import product

import numpy as np
from numpy.typing import NDArray

N_DIMS = 128
_THINGS = ("invoice", "password", "delivery", "contract", "keyboard", "passport", "calendar", "bicycle", "mortgage",
           "telescope", "fireplace", "orchestra", "vaccination", "photograph", "parachute")
_FORMS = ("how can a customer {verb} the {thing}", "where does one {verb} the {thing}",
          "please explain how to {verb} the {thing}", "steps to {verb} the {thing}", "is there a way to {verb} the {thing}",
          "what must one do to {verb} the {thing}")
_VERBS = ("replace", "cancel", "translate")
_ENDS = ("", " at once", " by phone", " in the app", " on site", " for a friend")


def phrased() -> list[tuple[str, str]]:
    """(question, answer): some ways to ask for each of some things."""
    return [(form.format(verb=verb, thing=thing) + end, f"{verb} {thing}")
            for thing, verb, form, end in product(_THINGS, _VERBS, _FORMS, _ENDS)]


def as_csv() -> str:
    """A file of classes."""
    return "text,category\n" + "".join(f"{text},{answer}\n" for text, answer in phrased())


class Words:
    """Instead of an encoder: words by chance but always the same, added up."""

    id = "words"
    n_dims = N_DIMS

    def embed_all(self, texts: list[str]) -> NDArray[np.float32]:
        """float32 [texts, N_DIMS], of length 1."""
        found = np.stack([sum((_vector(word) for word in text.split()), np.zeros(N_DIMS, np.float32)) for text in texts])
        unit: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
        return unit


def _vector(word: str) -> NDArray[np.float32]:
    weight = 2.0 if word in _THINGS or word in _VERBS else 1.0  # what a model has learned
    seed = int.from_bytes(blake2b(word.encode(), digest_size=4).digest(), "little")
    return np.float32(weight) * np.random.default_rng(seed).standard_normal(N_DIMS, dtype=np.float32)
