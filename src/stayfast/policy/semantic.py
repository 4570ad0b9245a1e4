"""What one route says of giving the answer to another question: how much may be wrong, and what finding out may cost.

`max_error` is the share of *hits* that may be wrong (policy/calibrate.py); everything is a miss until enough is known.
`threshold` instead of it is a fixed cosine: quick to set, and nobody knows what it serves wrongly.
"""

import re
from dataclasses import dataclass, field

from stayfast.policy.calibrate import CalibrateConfig
from stayfast.policy.eligible import EligibleConfig

PERCENT = r"[0-9]{1,3}(\.[0-9]{1,6})?%?"
PERCENT_FORM = "a share like 1% or 0.01"
MOST_LABELS = 4096  # who wants more before the first hit wants none


@dataclass(frozen=True, slots=True)
class SemanticConfig:
    """The semantic cache of one route, in use where its cache has the mode semantic."""

    max_error: str = "1%"
    threshold: float | None = None
    audit: float = 0.05
    min_labels: int = 300
    semantic_ttl_s: float = 3600.0
    within_s: float = 0.05
    max_phrasings: int = 50_000
    same_answer: float = 0.9
    new_word_from: float = 0.0
    judge: str = ""
    verify: str = ""
    eligible: EligibleConfig = field(default_factory=EligibleConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(PERCENT, self.max_error):
            raise ValueError(f"max_error must be {PERCENT_FORM}, not {self.max_error!r}")
        if self.threshold is not None and not 0.5 <= self.threshold <= 1:
            raise ValueError(f"threshold must be from 0.5 to 1, not {self.threshold}")
        if not 0 < self.semantic_ttl_s <= 31_536_000:
            raise ValueError(f"semantic_ttl_s must be more than 0 and at most 31536000 seconds, not {self.semantic_ttl_s}")
        if not 0.001 <= self.within_s <= 10:
            raise ValueError(f"within_s must be from 0.001 to 10 seconds, not {self.within_s}")
        if not 10 <= self.max_phrasings <= 10_000_000:
            raise ValueError(f"max_phrasings must be from 10 to 10000000, not {self.max_phrasings}")
        if not 0.5 <= self.same_answer <= 1:
            raise ValueError(f"same_answer must be from 0.5 to 1, not {self.same_answer}")
        if not 0 <= self.new_word_from <= 1:
            raise ValueError(f"new_word_from must be from 0 to 1, not {self.new_word_from}")
        if self.min_labels > MOST_LABELS:
            raise ValueError(f"min_labels must be at most {MOST_LABELS}, not {self.min_labels}")
        self.calibrated()

    def calibrated(self) -> CalibrateConfig:
        """How the threshold is found. Raises ValueError naming the field that is out of bounds."""
        share = float(self.max_error.rstrip("%")) / (100.0 if self.max_error.endswith("%") else 1.0)
        return CalibrateConfig(share, self.audit, self.min_labels)
