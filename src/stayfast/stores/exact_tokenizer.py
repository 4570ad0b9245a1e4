"""Vocabularies inside packages or files, by which the tokens of a text are counted exactly. Nothing is downloaded.

A vocabulary takes a second and up to 100 MB to load, so one is shared by all routes of a process, and loaded on another
thread. bpe-openai holds OpenAI's; tokenizers reads any tokenizer.json.
"""

from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

from stayfast.policy.context.config import VOCABULARIES

_PACKAGED, _FROM_FILE = "bpe_openai", "tokenizers"  # the packages that read a vocabulary
INSTALL_HINT: Final = "pip install '.[tokens]' in Stayfast's checkout"


class NoTokenizer(Exception):
    """A vocabulary could not be loaded. The message has the reason and what to do."""


class ExactTokenizer(Protocol):
    """One vocabulary. Thread-safe."""

    def encode(self, text: str) -> list[int]:
        """The ids of the tokens of a text, without those that a chat template adds."""


class _PackagedVocabulary:
    __slots__ = ("_encoding",)

    def __init__(self, name: str) -> None:
        self._encoding: Any = import_module(_PACKAGED).get_encoding(name)

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._encoding.encode_ordinary(text)
        return found


class _VocabularyFile:
    __slots__ = ("_tokenizer",)

    def __init__(self, path: str) -> None:
        self._tokenizer: Any = import_module(_FROM_FILE).Tokenizer.from_file(path)

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def package_of(name: str) -> str:
    """The importable package that reads a vocabulary. name: as of `load_tokenizer`."""
    return _PACKAGED if name in VOCABULARIES else _FROM_FILE


def load_tokenizer(name: str) -> ExactTokenizer:
    """name: one of VOCABULARIES, or the path of a tokenizer.json. Takes up to seconds. Raises NoTokenizer."""
    package = package_of(name)
    if package == _FROM_FILE and not Path(name).is_file():
        raise NoTokenizer(f"there is no file {name}: give the path of the model's tokenizer.json")
    try:
        return _PackagedVocabulary(name) if package == _PACKAGED else _VocabularyFile(name)
    except ImportError as error:
        raise NoTokenizer(f"{name} needs the package {package}, which is not installed ({error}): "
                          f"{INSTALL_HINT}") from error
    except Exception as error:  # tokenizers raises Exception itself
        raise NoTokenizer(f"{name} is not a vocabulary that the package {package} reads: {error}") from error


class TokenizerSlot:
    """A vocabulary, loaded at first use or by `load`. Thread-safe."""

    __slots__ = ("_lock", "_tokenizer", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._tokenizer: ExactTokenizer | None = None

    @property
    def tokenizer(self) -> ExactTokenizer | None:
        """None: not loaded yet."""
        return self._tokenizer

    def load(self) -> ExactTokenizer:
        """Load it, once. Takes up to seconds. Raises NoTokenizer."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self.name)
        return self._tokenizer
