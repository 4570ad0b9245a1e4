"""Patterns that a guard searches in a text: secrets, and known phrasings of prompt injections.

Problem: a text may try to replace the operator's instructions, or carry a key that must stay secret; and searching
thousands of characters by dozens of patterns takes longer than the whole gateway may add. Rule: each pattern names words of
which one must occur (`anchors`, found by a plain search), and only then runs its expression, piece by piece of PIECE
characters with an overlap. The caller's clock is read after each piece, and a scan over its time ends, as not complete.

Each expression takes time linear in the text: no repetition stands inside another, each has an upper bound, and two
neighbouring repetitions share no character or are bounded by a few. Case, full-width letters, letters of other alphabets
that look like Latin ones, and invisible characters are folded to one character each, so that places stay the same.
Source: the public lists of OWASP (LLM01, Prompt Injection) and of Perez and Ribeiro, "Ignore Previous Prompt" (2022), for
phrasings; the providers' documentation of the forms of their keys.
When wrong: often. Other words, other languages, encodings and images are not found, and a text *about* injections is. A
guard lowers the number of accidents, and proves nothing.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

ALLOW, FLAG, BLOCK = "allow", "flag", "block"
PIECE: Final = 4096  # characters between two readings of the clock
OVERLAP: Final = 256  # no match is longer
SECRET, INJECTION, LABEL = "secret", "injection", "label"  # kinds of rules


class GuardRule(Struct, frozen=True):
    """anchors: folded texts of which one occurs in each match. expression: of the match, searched in the folded text; that
    of a secret in the text itself.
    """

    id: str
    kind: str
    anchors: tuple[str, ...]
    expression: str


class GuardMatch(Struct, frozen=True):
    """text: the number of the text. start, end: of the match, in characters of that text."""

    rule: str
    kind: str
    text: int
    start: int
    end: int


class GuardScan(Struct, frozen=True):
    """Matches in the order of the texts; is_complete: the whole was read."""

    matches: tuple[GuardMatch, ...]
    is_complete: bool


def _injection(name: str, anchors: str, pattern: str) -> GuardRule:
    """`_` in a pattern stands for what separates words: up to four characters that are none of a word."""
    return GuardRule(f"injection.{name}", INJECTION, tuple(anchors.split("|")), pattern.replace("_", r"[^a-z0-9]{1,4}"))


def _secret(name: str, anchors: str, pattern: str) -> GuardRule:
    return GuardRule(f"secret.{name}", SECRET, tuple(anchors.split("|")), pattern)


_OLD: Final = (r"(?:all_|any_|the_|your_|my_|of_){0,3}(?:previous|prior|above|earlier|preceding|foregoing|former|existing"
               r"|initial|original|system|developer)")
_ORDERS: Final = r"(?:instruction|prompt|direction|guideline|rule|message|command|context|directive|constraint)"
INJECTIONS: Final = (
    _injection("ignore_instructions", "ignore|disregard|forget|override|bypass|neglect|skip",
               rf"(?:ignore|disregard|forget|override|bypass|neglect|skip)_{_OLD}_(?:[a-z]{{1,12}}_){{0,2}}{_ORDERS}"),
    _injection("ignore_everything", "ignore|disregard|forget",
               r"(?:ignore|disregard|forget)_(?:everything|anything|all)_(?:above|before|previously|(?:that_)?(?:i|you|we|they)_"
               r"(?:said|wrote|were_told|have_been_told|were_given)|you_(?:know|were|have))"),
    _injection("do_not_follow", "not follow|n't follow|not obey|n't obey|stop following",
               rf"(?:(?:do_not|don_t|stop)_(?:follow|obey)(?:ing)?|stop_following)_{_OLD}_(?:[a-z]{{1,12}}_){{0,2}}{_ORDERS}"),
    _injection("new_instructions", "new instructions|new rules|real instructions|updated instructions|instructions:",
               r"(?:your_|the_|these_are_)(?:new|real|actual|true|updated)_(?:instructions|rules|task|orders)_(?:are|is|follow)"),
    _injection("reveal_prompt", "prompt|instructions",
               r"(?:reveal|show|print|repeat|output|display|leak|expose|tell_me|give_me|write_out|recite)_(?:me_|us_)?(?:the_|your_|"
               r"all_|of_|entire_|full_|exact_|complete_|hidden_|secret_|initial_|original_){0,5}(?:system_prompt|system_message|"
               r"initial_prompt|hidden_prompt|developer_message|secret_instructions|hidden_instructions|initial_instructions|"
               r"system_instructions|original_instructions)"),
    _injection("repeat_above", "above|before",
               r"(?:repeat|print|output|copy)_(?:all_|everything_|the_|every_|of_){0,3}(?:words|text|lines|content|everything)_"
               r"(?:above|before_this)"),
    _injection("no_restrictions", "restriction|limitation|filter|rules|guideline|policies",
               r"(?:without|no|ignore|free_(?:of|from)|disable|remove)_(?:any_|all_|your_|the_|content_|safety_|ethical_|moral_){0,3}"
               r"(?:restrictions|limitations|filters|guardrails|safeguards|safety_rules|content_policies|ethical_guidelines)"),
    _injection("named_jailbreak", "dan|jailbr|developer mode|god mode|do anything now|stan mode",
               r"(?:do_anything_now|(?:you_are|act_as|be|as|become|called|named)_(?:now_)?dan(?![a-z0-9])|(?:enable|enter|activate|"
               r"switch_to|in)_(?:developer|god|jailbreak|dan|stan)_mode|jailbr(?:eak|oken)_(?:mode|prompt|yourself))"),
    _injection("unfiltered_role", "unfiltered|uncensored|amoral|evil|unrestricted",
               r"(?:pretend|act|behave|respond|answer|you_are|roleplay|imagine)_(?:to_be_|as_|like_|now_|that_you_are_|you_are_|if_"
               r"){0,3}(?:an?_)(?:[a-z]{1,14}_){0,2}(?:unfiltered|uncensored|amoral|evil|unrestricted)"),
    GuardRule("injection.fake_role_mark", INJECTION,
              ("im_start", "im_end", "endoftext", "[inst]", "<<sys>>", "start_header_id", "system>", "# system",
               "# instruction"),
              r"<\|(?:im_start|im_end|endoftext|system|start_header_id|eot_id)\|>|\[/?inst\]|<</?sys>>|</?system>"
              r"|(?:^|\n)#{2,4} (?:system|instruction)s?(?: prompt)?:"),
    _injection("exfiltrate", "http",
               r"(?:send|post|upload|forward|exfiltrate|transmit|append)_(?:[a-z]{1,14}_){0,8}(?:to_)https?://"),
    _injection("hidden_from_user", "do not tell|don't tell|without telling|not mention|n't mention|not inform|not reveal",
               r"(?:do_not|don_t|without|never)_(?:tell|telling|mention|mentioning|inform|informing|reveal|revealing)_(?:this_)?(?:to_)?"
               r"(?:the_)?(?:user|human|customer|operator)"),
    _injection("translated_ignore", "ignorier|vergiss|ignora|olvida|ignorez|oublie|oubliez|dimentica",
               r"(?:ignoriere|vergiss|ignora|olvida|ignore|ignorez|oublie|oubliez|dimentica)_(?:[^\s]{1,12}_){0,3}"
               r"(?:anweisungen|instrucciones|consignes|instructions|istruzioni|regeln|reglas)"),
)
_WORD: Final = r"(?<![A-Za-z0-9])"
SECRETS: Final = (
    _secret("openai_key", "sk-", _WORD + r"sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{20,200}"),
    _secret("aws_key", "akia|asia", _WORD + r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _secret("github_token", "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
            _WORD + r"(?:gh[pousr]_[A-Za-z0-9]{36,200}|github_pat_[A-Za-z0-9_]{22,200})"),
    _secret("gitlab_token", "glpat-", _WORD + r"glpat-[A-Za-z0-9_-]{20,64}"),
    _secret("slack_token", "xox", _WORD + r"xox[abeoprs]-[A-Za-z0-9-]{10,200}"),
    _secret("stripe_key", "sk_live_|rk_live_", _WORD + r"[sr]k_live_[A-Za-z0-9]{16,200}"),
    _secret("google_key", "aiza", _WORD + r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _secret("huggingface_token", "hf_", _WORD + r"hf_[A-Za-z0-9]{30,64}"),
    _secret("npm_token", "npm_", _WORD + r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    _secret("json_web_token", "eyj", _WORD + r"eyJ[A-Za-z0-9_-]{10,100}={0,2}\.eyJ[A-Za-z0-9_-]{10,100}"),
    _secret("private_key", "private key-----", r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY-----"),
    _secret("url_password", "://", r"://[^\s:/@]{1,64}:[^\s:/@]{3,64}@[A-Za-z0-9.-]{1,100}"),
)
_LOOKALIKES: Final = dict(zip("\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b"
                              "\u0410\u0415\u041e\u0420\u0421\u0423\u0425\u0406\u0408\u0405\u0392\u0391\u0395\u0397\u0399\u039a"
                              "\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03bf\u0131\u0421\u0422\u041c\u041d\u041a\u0412",
                              "aeopcyxijshdwaeopcyxijsbaehikmnoptxoictmhkb", strict=True))


class _Folded(dict[int, str]):
    """Each character in its folded form, computed once: lower case, Latin for its look-alikes, one character for one."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        folded = chr(code - 0xFEE0) if 0xFF01 <= code <= 0xFF5E else _LOOKALIKES.get(char, char)
        lower = folded.lower()
        found = lower if len(lower) == 1 else folded
        if len(self) < _MAX_FOLDED:
            self[code] = found
        return found


_MAX_FOLDED: Final = 4096
_FOLDED: Final = _Folded()


def fold(text: str) -> str:
    """The text in lower case, look-alikes as Latin letters; of the same length."""
    return text.lower() if text.isascii() else text.translate(_FOLDED)


@cache
def _compile(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def compile_rules(rules: Iterable[GuardRule]) -> None:
    """Compile the expressions of the rules, some 5 ms in all, once in a process. Otherwise the first text with the anchor of
    a rule compiles it.
    """
    for rule in rules:
        _compile(rule.expression)


def scan_texts(texts: Sequence[str], rules: Sequence[GuardRule], *, max_chars: int = 20_000, is_late: Callable[[], bool]
               ) -> GuardScan:
    """The first match of each rule in the first `max_chars` characters of the texts. is_late: read after each piece; the
    scan ends where it is true.
    """
    matches: list[GuardMatch] = []
    left, open_rules = max_chars, list(rules)
    for number, text in enumerate(texts):
        for begin, piece in _pieces(text[:left]):
            for found in _scan_piece(piece, open_rules):
                matches.append(GuardMatch(found.rule, found.kind, number, begin + found.start, begin + found.end))
                open_rules = [rule for rule in open_rules if rule.id != found.rule]
            if is_late():
                is_end = number == len(texts) - 1 and begin + len(piece) >= len(text)
                return GuardScan(tuple(matches), is_end)
        if len(text) > left:
            return GuardScan(tuple(matches), False)
        left -= len(text)
    return GuardScan(tuple(matches), True)


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Overlapping pieces and where they begin."""
    for begin in range(0, max(1, len(text) - OVERLAP), PIECE - OVERLAP):
        yield begin, text[begin:begin + PIECE]


def _scan_piece(piece: str, rules: Sequence[GuardRule]) -> Iterator[GuardMatch]:
    folded = fold(piece)
    for rule in rules:
        for anchor in rule.anchors:
            if anchor in folded:
                found = _compile(rule.expression).search(piece if rule.kind == SECRET else folded)
                if found is not None:
                    yield GuardMatch(rule.id, rule.kind, 0, found.start(), found.end())
                break
