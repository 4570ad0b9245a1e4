"""Word lists of the languages in which questions may share answers: only English."""

import re
from dataclasses import dataclass
from typing import Final

from stayfast.policy.cache.terms import stem_word


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Word lists of one language, in lower case and without apostrophes.

    negators: words that negate a sentence. opposites: for each stem, the stems of opposite meaning. fillers: words without
    content, which also identify the language. pointing: first words of a question that refer to earlier text. pronouns:
    words that may do so in any place. volatile: words of questions whose answer changes soon; so does the answer to one with
    a word of rates and one of markets. personal: words of the client; possessive: those of what the client has. state:
    matches questions about the client's data or state; generic: questions of how to do something. numbers: number words and
    their digits, without "one", which is often a pronoun ("how could one").
    """

    negators: frozenset[str]
    opposites: dict[str, frozenset[str]]
    fillers: frozenset[str]
    pointing: frozenset[str]
    pronouns: frozenset[str]
    volatile: frozenset[str]
    rates: frozenset[str]
    markets: frozenset[str]
    personal: frozenset[str]
    possessive: frozenset[str]
    state: re.Pattern[str]
    generic: re.Pattern[str]
    numbers: dict[str, str]


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


def _opposites(pairs: str) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for pair in pairs.split():
        one, other = pair.split("/")
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    stems: dict[str, set[str]] = {}
    for word, others in found.items():
        stems.setdefault(stem_word(word), set()).update(map(stem_word, others))
    return {stem: frozenset(others) for stem, others in stems.items()}


_OF_STATE: Final = "(?:is|was|are|were|will|did|has|have|had|isnt|wasnt|arent|werent|wont|didnt|hasnt|havent|cant)"


ENGLISH: Final = Lexicon(
    negators=_words(
        "not no never none nothing without dont doesnt didnt cannot cant couldnt isnt arent wasnt werent wont wouldnt "
        "shouldnt hasnt havent hadnt neither nor nobody lack lacks lacking unable non except"),
    opposites=_opposites(
        "enable/disable enabled/disabled on/off increase/decrease raise/lower buy/sell ascending/descending asc/desc "
        "min/max minimum/maximum first/last before/after import/export upload/download encode/decode encrypt/decrypt "
        "open/close opened/closed start/stop add/remove install/uninstall largest/smallest biggest/smallest highest/lowest "
        "most/least more/less old/new oldest/newest left/right up/down win/lose male/female north/south east/west hot/cold "
        "pros/cons advantages/disadvantages causes/effects accept/reject approve/deny allow/deny allow/block lock/unlock "
        "activate/deactivate connect/disconnect include/exclude with/without true/false sync/async send/receive "
        "sent/received deposit/withdraw debit/credit push/pull show/hide today/tomorrow today/yesterday yesterday/tomorrow "
        "morning/evening legal/illegal public/private internal/external input/output row/column rows/columns "
        "arrival/departure lend/borrow employer/employee even/odd above/below over/under inside/outside indoor/outdoor "
        "indoors/outdoors top/bottom front/back inner/outer next/previous forward/backward forwards/backwards "
        "incoming/outgoing inbound/outbound weekday/weekend weekdays/weekends day/night days/nights daytime/nighttime "
        "summer/winter sunrise/sunset begin/end start/end early/late earlier/later earliest/latest past/future "
        "cheap/expensive cheaper/expensive cheapest/expensive high/low higher/lower large/small larger/smaller big/small "
        "bigger/smaller long/short longer/shorter longest/shortest fast/slow faster/slower fastest/slowest good/bad "
        "better/worse best/worst light/dark hard/soft wet/dry full/empty horizontal/vertical positive/negative "
        "merge/split insert/delete create/delete read/write minimize/maximize minimise/maximise arrive/depart hire/fire "
        "pass/fail profit/loss income/expense gross/net buyer/seller sender/recipient sender/receiver landlord/tenant "
        "client/server local/remote manual/automatic manually/automatically permanent/temporary domestic/international "
        "mother/father mothers/fathers mom/dad son/daughter sons/daughters brother/sister brothers/sisters husband/wife "
        "man/woman men/women boy/girl boys/girls daily/weekly daily/monthly daily/yearly weekly/monthly weekly/yearly "
        "monthly/yearly monthly/annual singular/plural possible/impossible correct/incorrect valid/invalid "
        "complete/incomplete in/out for/against safe/dangerous safe/risky safe/harmful tighten/loosen cause/prevent "
        "cause/cure causes/prevents causes/cures have/lack has/lacks cure/worsen strengthen/weaken"),
    fillers=_words(
        "a an the this that these those there here is are was were be been being am do does did done can could will would "
        "shall should may might must have has had having i me my mine you your yours he him his she her it its we us our "
        "they them their who whom whose what which when where why how and or but if so then than as at by for from in into "
        "of on off to with about over under up down out not no yes please just some any all only also very too unless im "
        "ive id ill youre thats whats hows dont doesnt didnt cant couldnt isnt arent wasnt wont hasnt havent"),
    pointing=_words(
        "it its this that these those they them their he him his she her and or but so also then again instead same else "
        "another ok okay yes no continue more"),
    pronouns=_words("it its this that these those they them their he him his she her"),
    volatile=_words(
        "today todays tonight tonights tomorrow tomorrows yesterday yesterdays now currently current latest weather "
        "forecast news score scores headlines"),
    rates=_words("price prices rate rates quote value worth trading"),
    markets=_words("stock stocks share shares bitcoin btc crypto ethereum eth dogecoin gold silver oil gas petrol diesel "
                   "index nasdaq dow bond bonds commodity commodities"),
    personal=_words("my mine our ours me myself ourselves i im ive id ill we"),
    possessive=_words("my mine our ours myself ourselves im ive"),
    state=re.compile(
        r"\b(?:where|when|why|what|which|who|how much|how long|how many|how)(?:s| " + _OF_STATE + r") (?:my|our)\b(?! own\b)"
        r"|^(?:\w+ ){0,2}?" + _OF_STATE + r" (?:my|our)\b|^(?:does|doesnt) (?:my|our)\b"
        r"|\b(?:was|were|wasnt|am|have|havent|did|didnt|had) (?:i|we)\b(?! able)"
        r"|\b(?:i|we) (?:was|were|have been|got|owe|owed)\b"
        r"|\bdo (?:i|we) (?:still |already )?(?:have(?! to\b)|owe|get charged)\b"
        r"|\b(?:status|state|balance|details|history) of (?:my|our)\b"
        r"|\b(?:can|could|would|will) you (?:please )?(?!(?:tell|explain|show) me how)\w+ (?:\w+ )?(?:my|our|me my)\b"
        r"|^(?:please )?(?:cancel|show|check|send|give|tell|find|get|change|delete|close|update|block|freeze|activate|track|"
        r"refund) (?:me )?(?:my|our)\b"),
    generic=re.compile(
        r"\bhow (?:do|can|could|would|should|might|to|does)\b|\b(?:can|could|may|should|must) (?:i|we|you|one|anyone)\b"
        r"|\b(?:is|are) there\b|\bis it (?:\w+ )?(?:possible|ok|okay|safe|allowed|legal)\b"
        r"|\bwhat (?:happens|if|about|does)\b"
        r"|\b(?:what|where|which|who|when|how often) (?:\w+ )?(?:do|can|should|could|must|would) (?:i|we)\b"
        r"|\bdo (?:i|we) (?:need|have to)\b|\b(?:i|we) (?:want|need|would like|wish) to\b|\bid like to\b|\bable to\b"
        r"|\bdo you\b"),
    numbers=dict(pair.split("/") for pair in _words(
        "zero/0 two/2 three/3 four/4 five/5 six/6 seven/7 eight/8 nine/9 ten/10 eleven/11 twelve/12 thirteen/13 fourteen/14 "
        "fifteen/15 sixteen/16 seventeen/17 eighteen/18 nineteen/19 twenty/20 thirty/30 forty/40 fifty/50 sixty/60 "
        "seventy/70 eighty/80 ninety/90 hundred/100 thousand/1000 million/1000000 billion/1000000000 dozen/12 half/0.5 "
        "twice/2 thrice/3 double/x2 triple/x3 second/2 third/3 fourth/4 fifth/5 sixth/6 seventh/7 eighth/8 "
        "ninth/9 tenth/10 hundreds/100 thousands/1000 millions/1000000 billions/1000000000 "
        "ii/2 iii/3 iv/4 vi/6 vii/7 viii/8 ix/9 xi/11 xii/12 xiii/13 xiv/14 xv/15 xvi/16 xvii/17 xviii/18 xix/19 xx/20")),
)
LEXICONS: Final = {"en": ENGLISH}
