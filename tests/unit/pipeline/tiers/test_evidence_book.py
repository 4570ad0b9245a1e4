"""Evidence by tenant and tier."""

import numpy as np

from stayfast.pipeline.tiers.evidence_book import MAX_TENANTS, EvidenceBook
from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.stores.labelled_vectors import LabelledVectors

CASCADE = EnoughConfig(mode="cascade", min_labels=100)
LEARNED = EnoughConfig(mode="learned", min_labels=100, at_least=0.9)


def learn(book: EvidenceBook, tenant: str | None, n: int, *, is_enough: bool = True, row: list[float] | None = None) -> None:
    vector = None if row is None else np.array(row, np.float32)
    for _ in range(n):
        book.learn(tenant, "small", vector, is_enough=is_enough, p_drawn=1.0, was_given=False, miss_share=0.0)


def test_labels_of_one_tenant_prove_nothing_for_another() -> None:
    book = EvidenceBook(CASCADE)
    learn(book, "a", 200)
    assert book.judge("a", "small", None, 0.0) is not None
    assert book.judge("b", "small", None, 0.0) is None
    assert book.judge(None, "small", None, 0.0) is None
    assert book.judge("a", "medium", None, 0.0) is None


def test_tenants_learn_together_where_that_is_set() -> None:
    book = EvidenceBook(EnoughConfig(mode="cascade", min_labels=100, shared_by_tenants=True))
    learn(book, "a", 60)
    learn(book, "b", 60)
    assert book.judge("c", "small", None, 0.0) is not None


def test_learned_tier_answers_near_questions_only() -> None:
    book = EvidenceBook(LEARNED, LabelledVectors)
    for _ in range(4):  # in turn, so that no side is learned first
        learn(book, "a", 50, row=[1.0, 0.0])
        learn(book, "a", 50, is_enough=False, row=[0.0, 1.0])
    assert book.judge("a", "small", np.array([0.99, 0.14], np.float32), 0.0) is not None
    assert book.judge("a", "small", np.array([0.14, 0.99], np.float32), 0.0) is None


def test_wrong_audits_drop_the_tier() -> None:
    book = EvidenceBook(CASCADE)
    learn(book, "a", 200)
    dropped = [book.learn("a", "small", None, is_enough=False, p_drawn=0.1, was_given=True, miss_share=0.0)
               for _ in range(5)]
    assert any(dropped)
    assert book.is_dropped("a", "small")
    assert book.judge("a", "small", None, 0.0) is None


def test_least_recently_used_tenant_is_forgotten() -> None:
    book = EvidenceBook(CASCADE)
    learn(book, "first", 200)
    for number in range(MAX_TENANTS):
        learn(book, f"t{number}", 1)
    assert book.judge("first", "small", None, 0.0) is None


def test_stats_sum_over_tenants() -> None:
    book = EvidenceBook(CASCADE)
    learn(book, "a", 200)
    learn(book, "b", 10, is_enough=False)
    [found] = book.stats()
    assert (found.tier, found.n_labels, found.n_enough, found.n_tenants, found.n_proven) == ("small", 210, 200, 2, 1)
