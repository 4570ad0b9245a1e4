"""Terms: what is left of a word when its inflection and its synonyms are ignored.

Problem: "cancelled my orders" and "cancel the order" must compare as equal, "Slovenia" and "Slovakia" as different. Rule: a
word's ending is removed (plural, -ing, -ed, -ly, a final e), and a synonym is replaced by the first word of its group. Two
terms are related if their common beginning has at least LEAST_SHARED letters and
SHARE_OF_LONGER of the longer ("activate" and
"activation").
Source: the order of endings is that of Porter (1980), without the conditions on syllables, which few words need.
When wrong: irregular forms differ unless a table has them ("bought"), and "produce" and "product" are related.
"""

from functools import lru_cache
from itertools import takewhile
from typing import Final, NamedTuple

from stayfast.policy.cache.english_kinds import KINDS, SYNONYMS

LEAST_SHARED: Final = 4  # letters
SHARE_OF_LONGER: Final = 0.65
MOST_LETTERS: Final = 40  # of a word; a longer one is a key or a path, and compared as it is
def _index_forms(listed: str) -> dict[str, str]:
    return dict(pair.split("/") for pair in listed.split())


_IRREGULAR: Final = _index_forms(
    "bought/buy paid/pay sent/send got/get gotten/get made/make lost/lose stole/steal stolen/steal took/take taken/take "
    "gave/give given/give went/go gone/go came/come wrote/write written/write chose/choose chosen/choose forgot/forget "
    "forgotten/forget broke/break broken/break left/leave found/find kept/keep sold/sell spent/spend saw/see seen/see "
    "began/begin begun/begin drove/drive driven/drive ate/eat eaten/eat drank/drink drunk/drink built/build men/man "
    "women/woman children/child people/person feet/foot inches/inch mice/mouse teeth/tooth leaves/leave wives/wife "
    "lives/live analyses/analysis data/data media/media news/news series/series has/have had/have does/do did/do "
    "done/do is/be are/be was/be were/be been/be worse/worse using/use used/use paypal/paypal this/this "
    "cancelled/cancel cancelling/cancel travelled/travel travelling/travel bring/bring brought/bring thing/thing "
    "things/thing king/king during/during spring/spring morning/morning evening/evening string/string strings/string "
    "monthly/monthly weekly/weekly daily/daily hourly/hourly yearly/yearly quarterly/quarterly biweekly/biweekly "
    "fortnightly/fortnightly family/family july/july italy/italy texas/texas paris/paris athens/athens "
    "brussels/brussels kansas/kansas arkansas/arkansas illinois/illinois wales/wales netherlands/netherlands "
    "philippines/philippines honduras/honduras cyprus/cyprus naples/naples windows/windows sheets/sheets teams/teams "
    "ups/ups aws/aws rails/rails fedex/fedex red/red speed/speed feed/feed need/need seed/seed sweden/sweden "
    "canvas/canvas christmas/christmas mars/mars uranus/uranus venus/venus united/united")


class Term(NamedTuple):
    """name: the common form."""

    name: str
    mark: str  # "kind:name"; empty without a kind


@lru_cache(16_384)
def make_term(word: str) -> Term:
    """The term of a word in lower case. About 0.1 us for a usual word, 3 us for a new one."""
    stem = stem_word(word)
    name = SYNONYMS_OF_STEMS.get(word) or SYNONYMS_OF_STEMS.get(stem, stem)
    kind = KINDS.get(word) or KINDS_OF_STEMS.get(stem, "") or KINDS_OF_STEMS.get(name, "")
    return Term(name, f"{kind}:{name}" if kind else "")


@lru_cache(16_384)
def stem_word(word: str) -> str:
    """A word without its inflection."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < LEAST_SHARED or len(word) > MOST_LETTERS or not word.isalpha():
        return word.rstrip(".,") or word
    word = _remove_plural(word)
    for ending in ("ing", "ed", "ly"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= LEAST_SHARED - 1 and not _VOWELS.isdisjoint(stem):
            word = stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz" else stem
            break
    if len(word) >= LEAST_SHARED + 1 and word[-1] == "y" and word[-2] not in _VOWELS:
        return word[:-1] + "i"
    return word[:-1] if len(word) >= LEAST_SHARED and word[-1] == "e" else word


def _remove_plural(word: str) -> str:
    if word[-1] != "s" or word[-2] in "su":
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1] if word[-2] != "i" else word


_VOWELS: Final = frozenset("aeiouy")
KINDS_OF_STEMS: Final = {stem_word(word): kind for word, kind in KINDS.items()}
SYNONYMS_OF_STEMS: Final = {stem_word(word): stem_word(first) for word, first in SYNONYMS.items()}


def is_related(one: str, other: str) -> bool:
    """Whether two terms are forms of one word."""
    if one == other:
        return True
    n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return n_shared >= LEAST_SHARED and n_shared >= SHARE_OF_LONGER * max(len(one), len(other))
