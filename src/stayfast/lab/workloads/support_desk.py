"""What a shop's help desk is asked: questions that come again in other words, and questions that nobody asks twice.

    again   one of the desk's tasks, the popular more often (Zipf); each is said with one of three verbs, one of three nouns,
            in one of 25 frames, with a greeting or a courtesy or neither: 22,500 wordings a task
    once    about one product of many thousands, and what it does in somebody's home; one in NEAR is a task after all, but in
            a case of its own, so that its answer is another one. That is where a cache errs

Each question has an article that answers it; the article's number in an answer shows for which question it was made.
"""

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any, Final, NamedTuple

from stayfast.lab.load.lengths import Book

_TASKS: Final = tuple((tuple(does.split("/")), tuple(what.split("/"))) for does, what in (line.split(" | ") for line in """
cancel/call back/withdraw | an order/a purchase/something I have ordered
return/send back/bring back | a faulty article/damaged goods/a broken item
track/follow/locate | a parcel/a package/a shipment
change/edit/correct | the delivery address/the shipping address/the address for deliveries
reset/recover/renew | a forgotten password/a lost password/the login password
redeem/use/cash in | a gift card/a voucher/a gift certificate
print/get a paper copy of/reprint | an invoice/a bill/a receipt
book/reserve/arrange | an assembly service/a fitter for furniture/somebody who assembles furniture
join/become a member of/sign up for | the loyalty programme/the bonus club/the points scheme
pay in instalments for/finance/spread the payments for | a large purchase/an expensive item/a big order
delete/erase/close | a customer account/a user profile/an online account
subscribe to/get/receive | the newsletter/the mailing list/your news by mail
rent/hire/borrow | a van/a transporter/a delivery truck
recycle/dispose of/hand in | an old mattress/a used mattress/a worn mattress
order/request/get | samples of fabric/swatches of cloth/textile samples
measure/take the size of/find the dimensions of | a window for curtains/a window for blinds/a window for drapes
claim/make use of/invoke | the warranty/the guarantee/the manufacturer's guarantee
download/get a copy of/find | an assembly manual/the building instructions/the instructions for assembly
replace/get a new one of/order again | a missing screw/lost screws/screws that were missing in the box
contact/reach/speak to | the customer service/a support agent/somebody at the hotline
pick up/collect/fetch | goods at the store/an order in the shop/a click and collect order
check/look up/find out | the opening hours/the business hours/the hours of the store
write/post/publish | a product review/a rating/an opinion of a product
apply for/look for/get | a job/a vacancy/employment at your company
sharpen/grind/whet | kitchen knives/a chef's knife/blunt knives
have dyed/have coloured/get tinted | wall paint/a bucket of paint/paint in a special shade
get permission for/register/bring | a dog in the store/a pet in the shop/an assistance dog
plan/design/draw | a fitted kitchen/a new kitchen/a kitchen layout
attend/take part in/enrol in | a course for welding/a welding class/a workshop on welding
insure/protect/get cover for | a bicycle/a bike/an electric bike
park/leave/charge | an electric car/a battery car/an electric vehicle
translate/switch/set | the language of the website/the language of the app/the site's language
clean/wash/get stains out of | a wool carpet/a woollen rug/a rug of wool
donate/give away/offer | furniture to charity/furniture to a good cause/sofas to a charity
split/divide/share | a payment among friends/the sum with friends/a payment between several cards
verify/confirm/prove | an email address/a mail account/the address of an inbox
block/report/freeze | a stolen store card/a lost store card/a missing store card
exchange/swap/trade | foreign money/currency/dollars for euros
repair/mend/fix | a leaking tap/a dripping tap/a faucet that leaks
breed/keep/raise | bees on a balcony/honey bees at home/a bee hive in the garden
""".strip().splitlines()))
_FRAMES: Final = (
    "how do I {}?", "how can I {}?", "what is the way to {}?", "I want to {}.", "please tell me how to {}.",
    "can you help me to {}?", "I need to {}.", "is it possible to {}?", "where do I go to {}?", "what are the steps to {}?",
    "I would like to {}.", "what must I do to {}?", "trying to {}, how does that work?", "could you explain how to {}?",
    "what does it take to {}?", "am I able to {}?", "which button do I press to {}?", "show me how to {}.",
    "is there a way to {}?", "I have to {}.", "how does one {}?", "what should I do if I want to {}?", "help me {}.",
    "tell me what I need in order to {}.", "I am looking for a way to {}.")
_GREETINGS: Final = ("", "", "", "", "", "hi, ", "hello, ", "good day, ", "quick question: ", "dear team, ")
_COURTESIES: Final = ("", "", "", "", "", " thanks", " thank you", " please", " cheers", " kind regards")
_CASES: Final = (
    "that my late father left", "that belongs to a company abroad", "that a court has frozen", "won in a raffle",
    "that the flood has ruined", "from the shop you have closed", "bought with a stolen card", "for my former wife",
    "made under another name", "that is part of a bankruptcy", "for a school on an island", "that a child made by mistake")
_KINDS: Final = (
    "walnut", "steel", "bamboo", "copper", "linen", "oak", "glass", "marble", "leather", "canvas", "cork", "rattan",
    "ceramic", "brass", "wool", "granite", "velvet", "birch", "slate", "aluminium", "teak", "felt", "concrete", "acrylic")
_PRODUCTS: Final = (
    "bookshelf", "kettle", "desk lamp", "garden hose", "tool box", "shower curtain", "hammock", "wheelbarrow", "coat rack",
    "mirror", "drill", "ladder", "rug", "bench", "planter", "grill", "mailbox", "door handle", "sink", "stool", "fence",
    "wardrobe", "toaster", "birdhouse", "workbench", "chandelier", "radiator", "awning", "dehumidifier", "sandpit",
    "water pump", "letter opener", "clothes horse", "bread bin", "fire screen", "paint roller")
_ASPECTS: Final = (
    "fit beside a {} window", "stand the winter on a {} balcony", "hold the weight of a {} aquarium",
    "match the floor of a {} kitchen", "come apart for a {} staircase", "keep its colour in {} sunlight",
    "work in a {} cellar", "make noise in a {} flat", "need screws for a {} wall", "smell when left in a {} room",
    "survive a {} puppy", "go with a {} sofa")
_SORTS: Final = (
    "narrow", "damp", "victorian", "noisy", "rented", "sloping", "tiny", "crooked", "southern", "draughty", "converted",
    "plastered", "rooftop", "unfinished", "wooden", "heated", "shared", "green", "wide", "northern", "listed", "tiled",
    "vaulted", "whitewashed")
_STRIDE: Final = 100_003  # prime: another question each time, a quarter of a million times, and neighbours unlike
NEAR: Final = 50
AGAIN: Final = 0.4
PASTED: Final = 0.3
N_STATIC: Final = 1200  # words of the system prompt, each a token
N_PASTED: Final = 2600
BELOW: Final = "\n\n"  # between a question and the text that is pasted below it
_MORE: Final = "Open it, follow it from the top, and come back to us if anything in it is not as you see it. " * 5


class Question(NamedTuple):
    """One question, and the number of its article: the same for all that have the same answer."""

    text: str
    article: int


class Desk:
    """Draws questions; all by `rng`. again: the wordings of each task, where they are not to be made up."""

    def __init__(self, rng: Random, again: Sequence[Sequence[str]] = ()) -> None:
        self._rng = rng
        self._again = again
        self.n_tasks = len(again) or len(_TASKS)
        self._order = rng.sample(range(self.n_tasks), self.n_tasks)  # the popular first
        self._weights = list(accumulate(1 / rank for rank in range(1, self.n_tasks + 1)))
        self._n_once = 0
        self._mix = rng.randrange(1_000_000)

    def again(self) -> Question:
        """A task in some words. Numbers of tasks are below `n_tasks`, those of others are not."""
        rng = self._rng
        [task] = rng.choices(self._order, cum_weights=self._weights)
        return Question(rng.choice(self._again[task]) if self._again else self._phrase(_TASKS[task]), task)

    def once(self) -> Question:
        """A question that comes once."""
        self._n_once += 1
        article = self.n_tasks + self._n_once
        n_near, rest = divmod(self._n_once, NEAR)
        if rest == 0:
            task, case, sort = _digits(n_near, _TASKS, _CASES, _SORTS)
            return Question(self._phrase(task, f" {case}, for a {sort} house"), article)
        kind, product, aspect, sort = _digits(self._n_once * _STRIDE + self._mix, _KINDS, _PRODUCTS, _ASPECTS, _SORTS)
        return Question(f"Does the {kind} {product} {aspect.format(sort)}?", article)

    def _phrase(self, task: Sequence[Sequence[str]], case: str = "") -> str:
        rng = self._rng
        does, what = (rng.choice(words) for words in task)
        text = rng.choice(_GREETINGS) + rng.choice(_FRAMES).format(f"{does} {what}{case}") + rng.choice(_COURTESIES)
        return text[0].upper() + text[1:]


def _digits(number: int, *lists: Sequence[Any]) -> list[Any]:
    """One of each list: another choice for each number, until there are no others."""
    found = []
    for choices in lists:
        number, at = divmod(number, len(choices))
        found.append(choices[at])
    return found


def answer_of(article: int) -> str:
    """The answer to the questions of this article."""
    return f"Article {article} of our pages tells you, step by step, what to do. {_MORE}"


class Visit(NamedTuple):
    """One request. pasted: the number of a text that comes with the question, and makes the request its own; None: none."""

    text: str
    article: int
    is_again: bool
    pasted: int | None = None


def visits(desk: Desk, rng: Random, n: int) -> list[Visit]:
    """AGAIN of them ask what comes again, PASTED come with a text, and all others ask something short of their own."""
    found = []
    for number in range(n):
        luck = rng.random()
        question = desk.again() if luck < AGAIN else desk.once()
        found.append(Visit(*question, is_again=luck < AGAIN, pasted=number if AGAIN <= luck < AGAIN + PASTED else None))
    return found


class DeskPrompts:
    """The texts of requests: all begin with the same instructions."""

    def __init__(self, seed: int) -> None:
        self._book = Book(seed)
        self.system = self._book.passage(0, N_STATIC)

    def message(self, visit: Visit) -> str:
        """The user's message: the question, and the text that is pasted below it."""
        if visit.pasted is None:
            return visit.text
        return visit.text + BELOW + self._book.passage(visit.pasted, N_PASTED)
