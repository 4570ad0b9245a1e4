"""lab.plan.break_even: when work on software pays."""

import pytest

from stayfast.lab.plan.break_even import break_even_hosted, break_even_machines


def test_break_even_machines_little_traffic_buys_the_machine() -> None:
    found = break_even_machines(100, 5.0, engineer_usd=800, machine_usd_per_h=1.8, bigger_usd_per_h=2.69)
    assert found.software_usd == pytest.approx(10 * 800 / 365)
    assert found.machine_usd == pytest.approx(0.89 * 24)
    assert found.advice.startswith("buy the bigger machine")


def test_break_even_machines_much_traffic_works_on_software() -> None:
    found = break_even_machines(100_000, 5.0, engineer_usd=800, machine_usd_per_h=1.8, bigger_usd_per_h=2.69)
    assert found.machine_usd == pytest.approx(0.89 * 24 * 12)  # one carries 8,640 requests a day
    assert found.advice.startswith("work on the software")
    assert found.requests_per_day == pytest.approx(8640)


def test_break_even_hosted_is_where_savings_equal_the_work() -> None:
    found = break_even_hosted(1000, 0.01, 0.4, engineer_usd=800)
    assert found.requests_per_day == pytest.approx(found.software_usd / 0.004)
    assert found.advice == "the work does not pay by its savings alone"
    assert break_even_hosted(10_000, 0.01, 0.4, engineer_usd=800).advice == "the work pays"


def test_break_even_hosted_without_a_price_gives_no_number() -> None:
    assert break_even_hosted(100, None, 0.4, engineer_usd=800).requests_per_day is None
