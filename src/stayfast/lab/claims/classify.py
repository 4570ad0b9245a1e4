"""Small classifiers on questions that they have not seen: how often right, how honest, how fast.

BANKING77 (10,003 questions, 77 similar intents) is cut into five parts at random, every intent evenly. For each part, a
classifier is trained on the other four (8,000 rows), with calibration and cascade, as `stayfast classify train` does; then
it answers the part. So each question is answered once, by a classifier that has not seen it; nothing is tuned on it. A quick
run answers one part. Texts are timed one by one, as a gateway gets them, in CPU of this thread.

When wrong: the questions are a bank's, short and English. `stayfast classify test` takes your own.
"""

import asyncio
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from stayfast.lab.harness.claim import ClaimResult, Conditions, NeedsData, SetUpFailed
from stayfast.stores.embedder import STATIC_INSTALL_HINT

CLASSES: Final = "banking77_train.csv"
N_PARTS: Final = 5
STATIC_RIGHT, CASCADE_RIGHT, MAX_ERROR = 0.89, 0.92, 0.03
STATIC_MS, P99_MS = 0.2, 3.0


@dataclass(frozen=True, slots=True)
class ClassifyClaim:
    """parts: how many of N_PARTS a full run and a quick run answer."""

    full_parts: int = N_PARTS
    quick_parts: int = 1

    name = "classify"
    statement = (f"On questions of a bank's customers that it has not seen, among 77 intents, a classifier trained on 8,000 "
                 f"of them is right in at least {STATIC_RIGHT:.0%} by static vectors, with at most {STATIC_MS:g} ms of CPU "
                 f"each on average and {P99_MS:g} ms at p99, and in at least {CASCADE_RIGHT:.0%} with MiniLM where the "
                 f"margin is small. Its probabilities err by at most {MAX_ERROR:.0%} (ECE).")

    async def run(self, conditions: Conditions) -> ClaimResult:
        if conditions.data is None or not (conditions.data / CLASSES).is_file():
            raise NeedsData(f"needs --data DIR, a folder with {CLASSES} (source: docs/proofs.md)")
        return await asyncio.to_thread(self._measure, conditions, conditions.data / CLASSES)

    def _measure(self, conditions: Conditions, file: Path) -> ClaimResult:
        try:
            trials = import_module("stayfast.lab.classify_trials")
        except ModuleNotFoundError as missing:
            raise SetUpFailed(f"{missing.name} is not installed; {STATIC_INSTALL_HINT}") from missing
        n_parts = conditions.choose(self.full_parts, self.quick_parts)
        found: ClaimResult = trials.measure_classifiers(conditions, file, n_parts)
        return found
