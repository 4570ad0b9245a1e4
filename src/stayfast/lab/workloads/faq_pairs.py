"""Pairs of questions that differ in one or two words, and must not share an answer.

A pair is a sentence with two variants, in plain words and within a longer message. Some variants are opposites of the word
lists (policy/cache/lexical.py), most are not.
"""

import re
from typing import Final

_SENTENCES: Final = """
How do I [top up/cash out] my account?
How do I [enable/disable] contactless payments on my card?
Can I [raise/lower] my daily limit for withdrawals?
Who pays the fee when I [send/receive] an international transfer?
How can I [freeze/unfreeze] my debit card in the app?
Is there a charge if I exchange [euros to pounds/pounds to euros]?
How long does a transfer from my [savings to my current/current to my savings] account take?
What happens if my transfer is [approved/rejected] by the other bank?
Can I open an account [with/without] a permanent address?
How do I [add/remove] a joint owner of my account?
What is the [minimum/maximum] age for a student account?
Can I use my card [before/after] its expiry date?
What do I do when my card was [stolen/found again]?
How do I [link/unlink] my phone and my account?
Is it [safe/unsafe] to store my card number in a browser?
Can I pay with a [virtual/physical] card in shops abroad?
How do I apply for a [debit/credit] card?
Does a [personal/business] account include free transfers?
Can my [mother/father] use my account while I travel?
Is an account for people [over/under] eighteen free?
How do I [accept/decline] a payment request?
Can I get a refund for a payment that was made [by mistake/on purpose]?
How do I [subscribe to/unsubscribe from] monthly statements by mail?
What happens when I [enter/forget] my passcode on a new phone?
Are transfers [to/from] Switzerland free of charge?
Does the bank [lend money to/borrow money from] its customers?
Can I [increase/decrease] my overdraft in the app?
What do you charge when I am [in credit/overdrawn] at the end of the month?
How do I [activate/deactivate] a spare card?
Can I [close/reopen] my account online?
What is the exchange rate when I [buy/sell] dollars?
Do you report [paid/unpaid] loans to the credit agency?
How do I [confirm/dispute] a payment on my statement?
Can a cheque be [cashed/cancelled] at any branch?
How much does it cost to [keep/end] a contract for a premium card?
How do I [import/export] a list of payees?
Can I view the balance when my phone is [online/offline]?
Is the cash machine open [during/outside] business hours?
Do I earn interest on a [positive/negative] balance?
How do I change the [first/last] name on my card?
How do I set up a transfer every [week/month]?
Can I get a card in the colour [black/white]?
Does the card work in [Austria/Australia]?
Which documents do I need as a [citizen/foreigner]?
Can I insure my phone [against theft/against damage] through the bank?
How is tax on [interest/dividends] deducted from my account?
Which app do I need for an [Android/Apple] phone?
Can I use [Visa/Mastercard] for a top up?
How do I [encrypt/decrypt] the statement that you sent me?
What happens if I [miss/make] a payment on my loan?
Are deposits [above/below] the guarantee limit protected?
How do I [hide/show] my balance on the start page?
Can I order cash for my trip to [Sweden/Switzerland]?
Do you charge [shops/customers] for a card payment?
Can the [sender/recipient] cancel a transfer?
How do I report that I was charged [twice/too little]?
What is the rate for a [fixed/flexible] mortgage?
Can I pay back my loan [early/late] for no extra charge?
How do I change my [postal/email] address?
Can I [merge/split] my two savings pots?
What does the status [pending/completed] mean for a withdrawal?
Does the bank call me [by phone/by video] for the identity check?
Can I see payments of [last/next] month in the list?
How many free withdrawals do I have [at home/abroad]?
Is my money [locked/available] while a transfer is checked?
Who can see the notes that I [write/read] in a transfer?
How do I get a [paper/digital] receipt for a donation?
Can the limit be changed [permanently/for one day]?
Are [incoming/outgoing] direct debits free?
How do I tell you that I [moved house/changed jobs]?
Will I get a new PIN when I order a [replacement/second] card?
Do you accept a [passport/driving licence] as proof of identity?
Is the fee refunded if the top up [failed/succeeded]?
How do I turn notifications [on/off] for card payments?
Can I give my [husband/daughter] access to a savings pot?
Which cash machines [take/return] deposited coins?
What is the fee for a [standard/express] delivery of a card?
How do I [prove/contest] where my income comes from?
Can I make a transfer to somebody [inside/outside] the European Union?
Does a [single/married] customer need both signatures?
How do I pay in [coins/notes] at a branch?
What is the limit for payments [with/without] the PIN?
How do I block [one shop/all shops] from charging my card?
Can I withdraw [pounds/pesos] from a cash machine in Mexico?
Do you keep my data after I [join/leave] the bank?
Should I [answer/ignore] a message that requests my code?
How do I [renew/terminate] the insurance of my card?
Can I [invite/exclude] friends when splitting a bill?
"""
_LONGER: Final = "Hello, I have been a customer for some time and I could not find this on the website. {} Thank you."
_VARIANTS: Final = re.compile(r"\[([^/\]]+)/([^\]]+)\]")


def list_opposite_pairs() -> list[tuple[str, str]]:
    """Pairs of questions with different answers."""
    pairs = [(_VARIANTS.sub(r"\1", line), _VARIANTS.sub(r"\2", line)) for line in _SENTENCES.strip().splitlines()]
    return [(frame.format(one), frame.format(other)) for frame in ("{}", _LONGER) for one, other in pairs]
