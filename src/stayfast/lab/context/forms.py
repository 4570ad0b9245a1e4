"""Sentences of four kinds of conversations: facts, constraints, steps and small talk, with places for values.

A form is what a user writes (`sources`), what refers to it later (`echoes`), and what a careful summary writes (`notes`, in
other words than the user). Places: {v} the value, {x} a detail that distinguishes two facts of one form.
"""

from typing import NamedTuple


class FactForm(NamedTuple):
    """A fact. `kind`: of its value (`lab.context.values`). `details`: for {x}."""

    kind: str
    sources: tuple[str, ...]
    echoes: tuple[str, ...]
    notes: tuple[str, ...]
    details: tuple[str, ...] = ("",)


class RuleForm(NamedTuple):
    """A negation of the user; what a summary writes of it, and the same with the opposite meaning."""

    sources: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]
    details: tuple[str, ...] = ("",)


class StepForm(NamedTuple):
    """A call of a tool. `done`, `failed`: its results; `notes_*`: the texts of a summary's steps."""

    call: str
    done: tuple[str, ...]
    failed: tuple[str, ...]
    notes_done: tuple[str, ...]
    notes_failed: tuple[str, ...]
    details: tuple[str, ...]


class Domain(NamedTuple):
    """The sentences of conversations about one subject."""

    name: str
    opening: tuple[str, ...]
    facts: tuple[FactForm, ...]
    rules: tuple[RuleForm, ...]
    steps: tuple[StepForm, ...]
    talk: tuple[str, ...]  # of users
    replies: tuple[str, ...]  # of the assistant
    stories: tuple[str, ...]  # first sentence of a narrative
    opens: tuple[tuple[str, str], ...]  # what remains to be done, and a summary's words for it


SUPPORT = Domain(
    "support",
    (
        "Hello, I need help with a delivery that went wrong.",
        "Hi, I have been a customer for years and now this.",
        "Good morning, there is trouble with what I bought from your shop.",
    ),
    (
        FactForm(
            "money",
            ("I paid {v} for the {x}.", "The {x} cost me {v}.", "You charged me {v} for the {x}."),
            ("So the {x} was {v}, right?", "I see the charge of {v} for the {x} here.", "As I wrote, {v} for the {x}."),
            ("price of the {x} = {v}", "{x}: paid {v}", "the customer was charged {v} for the {x}"),
            ("espresso machine", "standing desk", "rain jacket", "headset", "garden hose", "bookshelf"),
        ),
        FactForm(
            "order",
            ("The order number is {v}, the one with the {x}.", "My order {v} has the {x} in it."),
            ("I found order {v} with the {x}.", "Please check {v}, the {x} order, again."),
            ("order {v} contains the {x}", "{x} was ordered under {v}"),
            ("lamp", "kettle", "tent", "keyboard", "blender", "scooter"),
        ),
        FactForm(
            "date",
            ("The {x} was supposed to arrive on {v}.", "Tracking promised the {x} for {v}."),
            ("The promised day for the {x}, {v}, has passed.", "On {v} the {x} should have come."),
            ("promised arrival of the {x} = {v}", "{x} expected on {v}"),
            ("parcel", "sofa", "replacement", "spare part"),
        ),
        FactForm(
            "email",
            ("You can reach my {x} at {v}.", "The mail of my {x} is {v}."),
            ("I will write to your {x}, {v}.", "Did {v} get the message? That is my {x}."),
            ("contact of the {x} = {v}", "the {x} is reached at {v}"),
            ("neighbour", "wife", "office", "landlord"),
        ),
        FactForm(
            "name",
            ("{v} from your {x} team promised me a refund.", "I spoke with {v}, who works in {x}."),
            ("I will ask {v} in {x}.", "{v} ({x}) was friendly, by the way."),
            ("contact in {x} = {v}", "{v} of {x} was involved"),
            ("billing", "logistics", "returns", "repairs"),
        ),
        FactForm(
            "percent",
            ("I was offered a {x} discount of {v}.", "The {x} voucher says {v} off."),
            ("Correct, {v} is the {x} discount.", "{v} for {x} customers, that is what the mail says."),
            ("{x} discount = {v}", "a {x} voucher gives {v} off"),
            ("loyalty", "student", "newsletter", "birthday"),
        ),
        FactForm(
            "count",
            ("There were only {v} {x} in the box.", "I counted {v} {x} when I unpacked it."),
            ("{v} {x}, noted.", "Yes, {v} {x} and not the amount on the invoice."),
            ("{x} in the box = {v}", "{v} {x} were delivered"),
            ("cups", "screws", "panels", "cartridges"),
        ),
    ),
    (
        RuleForm(
            ("Do not send the {x} to my old address.", "Please never ship the {x} to the old address again."),
            (
                ("the {x} must not go to the old address", "the {x} goes to the old address"),
                ("old address is off limits for the {x}", "old address is right for the {x}"),
                ("never ship the {x} to the old address", "always ship the {x} to the old address"),
            ),
            ("replacement", "refund letter", "spare part"),
        ),
        RuleForm(
            ("I don't want a {x}.", "I will not accept a {x}.", "A {x} is no option for me, so don't offer one."),
            (
                ("the customer does not want a {x}", "the customer wants a {x}"),
                ("no {x} accepted", "{x} accepted"),
                ("the customer refuses a {x}", "the customer accepts a {x}"),
            ),
            ("voucher", "repair", "store credit"),
        ),
        RuleForm(
            ("My {x} has not been informed and must not be called.", "Don't call my {x} about this."),
            (("the {x} must not be called", "the {x} must be called"), ("do not call the {x}", "call the {x}")),
            ("employer", "mother", "bank"),
        ),
        RuleForm(
            ("The {x} arrived without the invoice.", "There was no invoice with the {x}."),
            (
                ("the {x} came without an invoice", "the {x} came with an invoice"),
                ("no invoice with the {x}", "invoice included with the {x}"),
            ),
            ("first parcel", "second parcel", "chair"),
        ),
    ),
    (
        StepForm(
            'create_return({{"item": "{x}"}})',
            ('{{"ok": true, "label": "printed"}}', "Return created."),
            ('{{"ok": false, "error": "item outside of the return window"}}', "Error: return window closed"),
            ("return of the {x} created", "created a return for the {x}"),
            ("return of the {x} refused: window closed", "creating a return for the {x}"),
            ("espresso machine", "desk", "jacket", "headset"),
        ),
        StepForm(
            'refund_payment({{"for": "{x}"}})',
            ('{{"ok": true}}', "Refund issued."),
            ('{{"ok": false, "error": "card expired"}}', "Error: the card was declined"),
            ("refund for the {x} issued", "the {x} was refunded"),
            ("refund for the {x}: card declined", "refund of the {x}"),
            ("shipping", "hose", "bookshelf", "duplicate charge"),
        ),
        StepForm(
            'update_address({{"of": "{x}"}})',
            ("Address updated.", '{{"ok": true, "validated": true}}'),
            ("Error: postcode unknown", '{{"ok": false, "error": "postcode unknown"}}'),
            ("{x} address updated", "new {x} address saved"),
            ("{x} address update, unknown postcode", "update of the {x} address"),
            ("billing", "delivery", "pickup"),
        ),
    ),
    (
        "I am rather annoyed by now, to be honest.",
        "It took me half an hour to find this chat.",
        "My family was looking forward to it all month.",
        "Thanks for looking into this so quickly.",
        "The box looked as if somebody had driven over it.",
        "I really like your shop otherwise.",
    ),
    (
        "I am sorry for the trouble and will look at your account right away.",
        "Thank you for the details, this helps me a lot.",
        "I understand how annoying this must be, and I will do what I can to make it right for you.",
        "Let me check this in our system. It may take a moment, as I have to look through several records.",
        "I have written this down in the notes of your case so that my colleagues can see it.",
    ),
    (
        "A customer complains about a delivery.",
        "The conversation is about a wrong delivery and what the shop can do.",
        "The customer has trouble with a purchase and the assistant works through the account.",
    ),
    (
        ("I still have to send you a photo of the damage.", "photo of the damage to be sent by the customer"),
        ("The warehouse has not yet answered my question.", "answer of the warehouse"),
    ),
)

CODING = Domain(
    "coding",
    (
        "I need your help with our payment service.",
        "Let's clean up this repository together.",
        "The nightly build is red again.",
    ),
    (
        FactForm(
            "duration",
            ("Set the {x} timeout to {v}.", "The {x} timeout should be {v}."),
            ("I set the {x} timeout to {v} in the settings.", "With {v} for the {x} timeout it looks better."),
            ("{x} timeout = {v}", "{x} timeout is {v}"),
            ("connect", "read", "lock", "shutdown", "idle"),
        ),
        FactForm(
            "size",
            ("The {x} cache may use {v} of memory.", "Give the {x} cache {v}."),
            ("{v} for the {x} cache, done.", "Does the {x} cache really need {v}?"),
            ("{x} cache size = {v}", "memory of the {x} cache: {v}"),
            ("session", "image", "query", "template"),
        ),
        FactForm(
            "count",
            ("Use {v} {x} in production.", "We run {v} {x} in production."),
            ("OK, {v} {x} it is.", "The config has {v} {x} now."),
            ("{x} in production = {v}", "production runs {v} {x}"),
            ("workers", "replicas", "shards", "partitions"),
        ),
        FactForm(
            "path",
            ("The {x} settings are in {v}.", "Look at {v} for the {x} settings."),
            ("I opened {v} and read the {x} settings.", "In {v} the {x} section is wrong."),
            ("{x} settings are in {v}", "file of the {x} settings: {v}"),
            ("logging", "database", "routing", "auth"),
        ),
        FactForm(
            "version",
            ("We pinned {x} to {v}.", "{x} has to be {v} for now."),
            ("{x} {v} is what the lock file has.", "I checked that {x} {v} is installed."),
            ("{x} pinned to {v}", "{x} version = {v}"),
            ("urllib3", "pydantic", "numpy", "redis-py"),
        ),
        FactForm(
            "ticket",
            ("The {x} bug is tracked as {v}.", "{v} is the ticket for the {x} bug."),
            ("I will link {v} in the commit for the {x} bug.", "{v} describes the {x} problem well."),
            ("{x} bug = {v}", "ticket of the {x} bug: {v}"),
            ("rounding", "login", "encoding", "paging"),
        ),
        FactForm(
            "symbol",
            ("The {x} logic lives in {v}.", "{v} does the {x}."),
            ("I changed {v}, which does the {x}.", "{v} is called twice for the {x}."),
            ("{x} is done by {v}", "{x} logic = {v}"),
            ("retry", "parsing", "signing", "batching"),
        ),
        FactForm(
            "percent",
            ("The {x} coverage must stay above {v}.", "We need at least {v} {x} coverage."),
            ("{x} coverage above {v}, understood.", "At least {v} {x} coverage is what CI checks."),
            ("{x} coverage: at least {v}", "{x} coverage has to be more than {v}"),
            ("branch", "line", "statement"),
        ),
    ),
    (
        RuleForm(
            (
                "Do not touch the {x} module.",
                "Never change the {x} module without review.",
                "Leave the {x} module alone, don't edit it.",
            ),
            (
                ("the {x} module must not be touched", "the {x} module may be touched"),
                ("do not edit the {x} module", "edit the {x} module"),
                ("{x} module: no changes", "{x} module: changes"),
            ),
            ("billing", "crypto", "legacy", "migration"),
        ),
        RuleForm(
            ("Don't use {x} in the tests.", "No {x} in tests, please.", "Tests must not use {x}."),
            (
                ("tests must not use {x}", "tests must use {x}"),
                ("no {x} in the tests", "{x} in the tests"),
                ("tests are written without {x}", "tests are written with {x}"),
            ),
            ("mocks", "sleep", "randomness", "fixtures"),
        ),
        RuleForm(
            ("We never deploy {x} on a Friday.", "Do not deploy {x} on a Friday."),
            (
                ("{x}: never deploy on Fridays", "{x}: deploy on Fridays"),
                ("Friday deployments of {x} are ruled out", "Friday deployments of {x} are fine"),
                ("no deploys of {x} on Friday", "deploys of {x} on Friday"),
            ),
            ("the gateway", "the worker", "the frontend"),
        ),
        RuleForm(
            ("The {x} flag must not be enabled yet.", "Don't enable the {x} flag yet."),
            (
                ("{x} flag must stay disabled", "{x} flag must be enabled"),
                ("do not enable the {x} flag", "enable the {x} flag"),
            ),
            ("tracing", "beta", "sharding"),
        ),
        RuleForm(
            ("Never merge a change of the {x} without review.", "The {x} is never changed without review."),
            (
                ("never change the {x} without review", "change the {x} without review"),
                ("no change of the {x} without review", "changes of the {x} without review"),
            ),
            ("schema", "pricing", "firewall"),
        ),
    ),
    (
        StepForm(
            'run_tests({{"suite": "{x}"}})',
            ("exit code 0\nall tests in the suite pass", "42 passed in 3.1s"),
            ("exit code 1\n1 failed, 41 passed", "Traceback (most recent call last):\nAssertionError: wrong total"),
            ("{x} tests pass", "ran the {x} tests successfully"),
            ("{x} tests", "{x} tests: one fails"),
            ("unit", "integration", "contract", "smoke"),
        ),
        StepForm(
            'apply_patch({{"target": "{x}"}})',
            ("Patch applied.", '{{"ok": true}}'),
            ("Error: hunk does not apply", '{{"error": "conflict"}}'),
            ("patch applied to the {x}", "{x} patched"),
            ("patch of the {x} does not apply", "patching the {x}"),
            ("parser", "scheduler", "router", "serializer"),
        ),
        StepForm(
            'build_image({{"image": "{x}"}})',
            ("Built and tagged.", "exit code 0"),
            ("exit code 2\nno space left on device", "Error: base image not found"),
            ("{x} image built", "built the {x} image"),
            ("build of the {x} image", "{x} image build"),
            ("api", "worker", "docs", "proxy"),
        ),
    ),
    (
        "Take your time, correctness matters more than speed.",
        "I am curious how you would approach it.",
        "The colleague who wrote this has left the company.",
        "Explain what you did afterwards, in simple words.",
        "That is an old part of the code and nobody likes it.",
        "Nice, continue.",
    ),
    (
        "I will read the relevant files first and then propose a change that is as small as possible.",
        "The structure is clear to me now, and I can see where the problem comes from.",
        "Before I go on, a short explanation: the function walks over all entries and collects what has changed.",
        "I looked at the call sites as well, and they all pass the same kind of argument, which makes this easier.",
    ),
    (
        "A developer works on a service with the assistant.",
        "The assistant helps with a repository.",
        "The session is about the code of a payment service.",
    ),
    (
        ("The changelog entry still needs to be written.", "changelog entry to be written"),
        ("The review by the security team is still pending.", "review by the security team"),
    ),
)
