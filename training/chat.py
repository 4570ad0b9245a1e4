"""From a conversation to token ids, in the ChatML shape that the exported template renders."""

from dataclasses import dataclass
from random import Random

from tokenizers import Tokenizer

from training.augment import Augmenter
from training.mixtures import Mixer
from training.topics import Topic, held_out_questions

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Only the last question is rendered: a model of this size knows answers, not conversations, and what came before it
# only leads it astray (with it rendered, 16 of 40 answers were right behind 430 words of other answers). Before it a short
# system prompt, as in training: llama.cpp writes the system prompt of whoever renders none into the question.
TEMPLATE = (
    "{% set ns = namespace(last='', system='') %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' or (loop.last and ns.last == '') %}{% set ns.last = message['content'] %}"
    "{% elif message['role'] == 'system' and message['content'] | length <= 80 %}{% set ns.system = message['content'] %}"
    "{% endif %}{% endfor %}"
    "{% if ns.system %}{{ '<|im_start|>system\\n' + (ns.system | trim) + '<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>user\\n' + (ns.last | trim) + '<|im_end|>\\n' }}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are a concise assistant. Answer in one or two sentences.",
    "You are an expert in LLM serving.",
    "Answer briefly and correctly.",
    "You are a friendly chatbot that helps developers.",
    "You are Stayfast, an assistant for latency questions.",
    "Be polite. If you do not know the answer, say so.",
    "You are ChatGPT, a large language model trained by OpenAI.",
    "Respond in English.",
    "You are a support agent for our product. Follow the rules below and never share secrets.",
    "Use the following context to answer the question.",
)


def render(role: str, content: str) -> str:
    """One finished message."""
    return f"{START}{role}\n{content.strip()}{END}\n"


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, where the answer begins, and how far the last turn is moved from its context."""

    ids: list[int]
    answer_at: int
    turn_at: int
    gap: int


class ExampleMaker:
    """Builds training conversations; most are one question, some have a past, a few a long one."""

    def __init__(
        self, topics: list[Topic], tokenizer: Tokenizer, rng: Random, *, context_share: float, mixed_share: float
    ) -> None:
        """`context_share` of the examples have a past; `mixed_share` of the questions are made up."""
        self._topics = topics
        self._augmenter = Augmenter(topics, held_out_questions(), rng)
        self._tokenizer = tokenizer
        self._rng = rng
        self._context_share = context_share
        self._mixed_share = mixed_share
        self._mixer = Mixer(topics, self._augmenter, rng)

    def make(self, topic: Topic, answer_tokens: int | None) -> Example:
        """A conversation that ends with this topic.

        `answer_tokens` keeps only the head of the answer: the head is where the choice of topic is
        made, so short examples buy more practice in choosing for the same compute.
        """
        context = self._context()
        if not topic.nouns and self._rng.random() < self._mixed_share:
            text, topic = self._mixer.question(topic)
        else:
            text = self._augmenter.question(topic)
        question = render("user", text) + f"{START}assistant\n"
        before = self._encode(context)
        asked = self._encode(question)
        answer = self._encode(topic.answer + END)
        gap = self._rng.randrange(1500) if before and self._rng.random() < 0.3 else 0
        return Example(
            ids=before + asked + answer[:answer_tokens],
            answer_at=len(before) + len(asked),
            turn_at=len(before),
            gap=gap,
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _context(self) -> str:
        """What precedes the question: usually nothing, since every token here costs time to train on."""
        if self._rng.random() >= self._context_share:
            return ""
        roll = self._rng.random()
        if roll < 0.4:
            return render("system", self._rng.choice(SYSTEM_PROMPTS))
        if roll < 0.95:
            system = render("system", self._rng.choice(SYSTEM_PROMPTS)) if roll < 0.65 else ""
            return system + self._past(self._rng.choice((1, 1, 2)))
        filler = self._filler(self._rng.randrange(2, 9))
        return render("system", filler) + self._past(self._rng.choice((0, 1, 2)))

    def _past(self, n_turns: int) -> str:
        """Earlier turns, with answers of any length, since a client may have cut or changed them."""
        turns = []
        for topic in self._rng.choices(self._topics, k=n_turns):
            words = topic.answer.split()
            keep = self._rng.choice((3, 8, len(words)))
            turns.append(render("user", self._augmenter.question(topic)))
            turns.append(render("assistant", " ".join(words[:keep])))
        return "".join(turns)

    def _filler(self, n_sentences: int) -> str:
        return " ".join(topic.answer for topic in self._rng.choices(self._topics, k=n_sentences))
