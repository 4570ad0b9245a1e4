"""Words that decide the meaning of a clause: negations, limits, states; and the stems by which clauses are compared.

Problem: a summary uses other forms of a word than its source, and one "not" turns its meaning round.
Rule: a content word is a word that is in none of these lists, cut to its stem: without plural, -ed, -ing, -ly and a last e,
and to five letters, so that deploy, deployed and deployment are one. English first; German, French, Spanish, Italian,
Portuguese and Dutch by their negations and a few words without content. When wrong: different words with the same five
letters (`approach`, `approve`) count as one; synonyms count as two.
Source: own lists; cutting to a prefix is the simplest stemmer.
"""

import re
from collections.abc import Sequence
from typing import Final

N_STEM: Final = 5


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEGATIONS: Final = _words("""
not never no none nothing nobody nowhere neither nor cannot cant dont doesnt didnt isnt arent wasnt werent wont wouldnt
shouldnt mustnt couldnt hasnt havent hadnt neednt aint without avoid avoids avoided avoiding except excepting excluding
exclude excludes excluded forbid forbids forbidden prohibit prohibits prohibited ban bans banned disallow disallowed refuse
refuses refused refrain unable impossible lacks lacking omit omits omitted unless nicht kein keine keinen keinem keiner
keines nie niemals ohne außer ne pas jamais sans aucun aucune nunca sin ningún ninguna jamás excepto non nessun nessuna
senza não nunca sem nenhum nenhuma niet geen nooit zonder""")
_TWO_WORDS: Final = re.compile(
    r"\b(?:rule[sd]? out|ruling out|off limits|off-limits|stay away from|keep out of|hands off|out of the question"
    r"|off the table|(?:leave|left|leaving)\b[^.,;]{0,50}\b(?:out|alone))\b", re.IGNORECASE)
# A negation inside of them is none: they are limits, requests or idioms.
_NO_NEGATIONS: Final = re.compile(
    r"\b(?:(?:no|not) (?:more|less|fewer|later|earlier|sooner|longer) than|(?:must|may|should|can|do|does|to) ?n[o']t exceed"
    r"|not only|no problem|no worries|why not|not exceed(?:ing)?|never exceed(?:ing)?|no doubt|not sure|i do ?n[o']t know"
    r"|cannot exceed|not to exceed)\b", re.IGNORECASE)
_NO_NEGATION_AT_START: Final = re.compile(r"\s*(?:no|non|nein|nee)\s*[,.!]", re.IGNORECASE)

UPPER: Final = re.compile(
    r"\b(?:at most|(?:no|not) (?:more|later|longer) than|up to|maximum(?: of)?|max\.?|(?:not|never"
    r"|cannot) (?:to )?exceed(?:ing)?"
    r"|n't exceed|less than|fewer than|under|below|capped? at|limit(?:ed)? (?:of|to|is|=)|ceiling|höchstens|maximal"
    r"|au plus|como máximo"
    r"|upper (?:limit|bound)|before|until|by)\s*[:=]?\s*(?:the |a |of )?\Z|<=?\s*\Z|≤\s*\Z", re.IGNORECASE)
LOWER: Final = re.compile(
    r"\b(?:at least|(?:no|not) (?:less|fewer|earlier|sooner) than|minimum(?: of)?|min\.?|more than|over|above|exceed(?:s"
    r"|ing)?|floor"
    r"|lower (?:limit|bound)|mindestens|au moins|al menos|after|not before|from)\s*[:=]?\s*(?:the |a |of )?\Z|>=?\s*\Z"
    r"|≥\s*\Z",
    re.IGNORECASE)
LIMITS: Final = re.compile(
    r"\b(?:must|have to|has to|needs? to be|required?|at (?:most|least)|(?:no|not) (?:more|less|fewer|later|longer"
    r"|earlier) than"
    r"|maximum|minimum|max|min|limit(?:ed)?|budget|deadline|only|always|cap(?:ped)?|exceed|exactly|up to|mindestens"
    r"|höchstens|muss"
    r"|nur|immer|au plus|au moins|doit|seulement|toujours|como máximo|al menos|debe|solo|siempre)\b", re.IGNORECASE)

FAILED: Final = _words("""
fail fails failed failing failure error errors errored crash crashed crashes broke broken rejected denied refused
unsuccessful unsuccessfully aborted declined bounced fehlgeschlagen fehler échoué falló""")
DONE: Final = _words("""
done complete completed completes finished finish succeeded success successful successfully fixed resolved deployed merged
passed pass passes passing sent shipped created updated installed migrated booked confirmed refunded approved uploaded issued
delivered applied works working added removed published restored cancelled canceled replaced processed paid exported
imported rebuilt restarted verified closed saved loaded renamed erledigt fertig terminé listo""")
OPEN: Final = _words("""
pending todo open waiting await awaits awaiting remains remaining outstanding unresolved undecided later next unfinished
blocked offen ausstehend pendiente""")
_WAITING: Final = OPEN - {"next", "later"}
_NOT_OPEN: Final = re.compile(  # a time, not a step that waits
    r"\b(?:next|later) (?:(?:that|this|in the|on the same|the same) )?(?:minute|hour|day|morning|afternoon|evening|night"
    r"|week(?:end)?|month|quarter|year|season|spring|summer|autumn|winter|time|(?:mon|tues|wednes|thurs|fri|satur|sun)day)s?\b"
    r"|\bnext to\b", re.IGNORECASE)
_OPEN_PHRASES: Final = re.compile(
    r"\b(?:still (?:to|needs?|has to|have to|open|missing|outstanding)|not yet|yet to|has not been|have not been"
    r"|to be (?:done|decided)"
    r"|needs? to be|in progress|will (?:be )?|should be|is due|to ?do)\b", re.IGNORECASE)
_FAILED_PHRASES: Final = re.compile(
    r"\b(?:timed out|time-out|could ?n[o']t|cannot be|was unable|were unable|(?:did|do|does) ?n[o']t (?:work|succeed|pass"
    r"|apply|go through)"
    r"|went wrong|gave up|without success|no success|unable to)\b", re.IGNORECASE)
# With a negation these are orders, not reports.
_ORDERS: Final = re.compile(
    r"\b(?:must|should|shall|may|might|can|could|will|would|do|does|never|wants?|without)\b|\b(?:don|won)['\u2019]?t\b",
    re.IGNORECASE)
_NOT_FAILED: Final = re.compile(r"\b(?:no|0|zero|without(?: any)?) (?:errors?|failures?)\b", re.IGNORECASE)

_WANTED: Final = _words("""
asked wanted tried attempted requested planned needed expected supposed will would should could may might if to""")
_PAST: Final = _words("built ran drew sent made wrote got")
_POLAR: Final = _words("allow allowed allows permitted permit permits okay ok yes may must can should could would will "
                       "shall do does did possible able fine option options")
_EMPTY: Final = _words("""
a an the this that these those it its he she they them their his her i we you your our my me us him and or but if then than
so as at by for from in into of on onto to up with within about over under per via be is are was were been being am has have
had having get gets got there here what which who whom whose when where why how all any both each more most other some such
same too very just also again once only own s t don now out off down between because while during before after above below
please asked asks ask take takes took taken place go goes went come comes came make makes made put puts set sets said says
say wants want wanted wish wishes user customer client assistant agent reports reported notes noted mentions mentioned
states stated according one let lets need needs needed like still already even well der die das den dem des ein eine einen
einem einer und oder aber wir sie ich er es ist sind war im in am zu zum zur auf mit von für bei als le la les un une des du
de et ou mais nous vous je il elle est sont dans sur avec pour par au aux el los las una y o pero en con por del al es il lo
gli uno e ma di da su per o os as um uma e mas em na no het een en maar van voor met op""")


def stem_of(word: str) -> str:
    """The stem of a word in lower case."""
    stem = word
    if len(stem) > 4 and stem.endswith(("ies", "ied")):
        stem = stem[:-3] + "y"
    for suffix in ("ing", "ed", "ly", "es", "s"):
        if stem.endswith(suffix) and len(stem) - len(suffix) >= 3 and not stem.endswith("ss"):
            stem = stem[:-len(suffix)]
            break
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeiouls":
        stem = stem[:-1]
    if len(stem) > 3 and stem.endswith("e"):
        stem = stem[:-1]
    return stem[:N_STEM]


ANTONYMS: Final[dict[str, str]] = {}
for _pair in ("increase decrease", "raise lower", "enable disable",              "accept reject", "include exclude",
              "before after", "more less", "maximum minimum", "earlier later", "faster slower", "higher lower",
              "approve reject", "public private", "mandatory optional", "manual automatic",
              "cheaper dearer", "internal external", "buy sell", "online offline"):
    _one, _other = _pair.split()
    ANTONYMS[stem_of(_one)] = stem_of(_other)
    ANTONYMS[stem_of(_other)] = stem_of(_one)


def state_stems(words: Sequence[str]) -> frozenset[str]:
    """The stems of words in lower case that only report a state."""
    return frozenset(stem_of(word) for word in words if word in FAILED or word in DONE or word in OPEN)


def is_content(word: str) -> bool:
    """Whether a word in lower case is content of a clause."""
    return word not in _EMPTY and word not in NEGATIONS and word not in _POLAR and len(word) > 1


def count_negations(text: str, words: Sequence[str]) -> int:
    """The negations of a clause. `words`: its words in lower case, without apostrophes. `No more than` and such are none."""
    n = sum(word in NEGATIONS for word in words)
    if n:
        n -= len(_NO_NEGATIONS.findall(text)) + bool(_NO_NEGATION_AT_START.match(text))
    if "o" in text:
        n += len(_TWO_WORDS.findall(text))
    return max(0, n)


def is_narrated_as_done(words: Sequence[str]) -> bool:
    """Whether a sentence reports in the past tense what was done, not what was wanted."""
    return _WANTED.isdisjoint(words) and any(word in _PAST or (len(word) > 4 and word.endswith("ed")) for word in words)


def state_of(text: str, words: Sequence[str]) -> str:
    """What a clause reports of a step: done, failed, open, or nothing."""
    is_negative = count_negations(text, words) % 2 == 1
    if _FAILED_PHRASES.search(text):
        return "failed"
    if _OPEN_PHRASES.search(text) or not (OPEN if not _NOT_OPEN.search(text) else _WAITING).isdisjoint(words):
        return "open"
    if not FAILED.isdisjoint(words):
        return "done" if _NOT_FAILED.search(text) or is_negative else "failed"
    if not DONE.isdisjoint(words):
        if is_negative:
            return "" if _ORDERS.search(text) else "failed"
        return "done"
    return ""
