"""What the settings of semantic caching mean. The bounds are the ones their own checks hold."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.setting import About
from stayfast.policy.cache.calibration import LEAST_LABELS
from stayfast.policy.cache.similarity import MOST_LABELS, PERCENT, PERCENT_FORM, EligibleConfig, SemanticConfig

SEMANTIC = {
    "max_error": About("Of the answers that a semantic cache gives, the share that may be wrong. Nothing is given before "
                       "that is known of enough of them.", pattern=PERCENT, form=PERCENT_FORM, or_number=True),
    "threshold": About("A fixed cosine instead: an answer is given from there on, and its error is not bounded. null: "
                       "`max_error` holds.", minimum=0.5, maximum=1),
    "audit": About("The share of semantic hits that make their own answer all the same, in the background, to compare.",
                   minimum=0.001, maximum=1),
    "min_labels": About("Comparisons before the first semantic hit.", minimum=LEAST_LABELS, maximum=MOST_LABELS),
    "semantic_ttl_s": About("No answer is given to another question that is older than this, in seconds.", more_than=0,
                            maximum=31_536_000),
    "within_s": About("A semantic look-up that takes longer is a miss, in seconds; `budget.cache` may make it less.",
                      minimum=0.001, maximum=10),
    "max_phrasings": About("Questions remembered, in each worker; 2 kB each. Beyond it the oldest goes.", minimum=10,
                           maximum=10_000_000),
    "same_answer": About("Two answers say the same from this cosine on: what wrong means is judged by that.", minimum=0.5,
                         maximum=1),
    "new_word_from": About("A question with a word that none of an answer's questions has had is given that answer from "
                           "this cosine on only: 0.8 is careful, and costs hits. 0: from any.", minimum=0, maximum=1),
    "judge": About("Another route, whose model has the last word where two answers are that much alike. Empty: they are the "
                   "same."),
    "verify": About("Another route, whose model has to say yes to a semantic hit before it is given, within `within_s` and "
                    "`budget.cache`; anything else is a miss. Empty: nobody is asked."),
    "eligible": About("Which questions may be answered by what was said to others."),
}

ELIGIBLE = {
    "language": About("Whose word lists are used: en. Other languages have none, and no semantic hits."),
    "personal": About("Whether questions that speak of \"my\" may share answers: where nobody's own data are looked up."),
    "n_content_words": About("A question with fewer words that say something leans on what was said before.", minimum=1,
                             maximum=20),
    "volatile_ttl_s": About("How long an answer about today, now or a price holds, in seconds: with a longer "
                            "`semantic_ttl_s` such questions are on their own.", minimum=0, maximum=31_536_000),
    "max_chars": About("Longer questions are on their own.", minimum=1, maximum=10_000),
}

DESCRIBED: Mapping[type[Any], Mapping[str, About]] = {
    SemanticConfig: SEMANTIC, EligibleConfig: ELIGIBLE}
