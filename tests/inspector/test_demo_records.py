from __future__ import annotations

from collections import Counter
from pathlib import Path

import make_refunds
import milepost_inspector.demo
import pytest
from milepost_inspector.demo import records
from milepost_inspector.demo.records import Settlement


@pytest.mark.parametrize(
    ("amount", "currency", "expected"),
    [
        ("18.93", "USD", (1893, "USD")),
        ("1,234.50", "eur", (123450, "EUR")),
        ("€ 12,90", "", (1290, "EUR")),
        ("€ 4.212,90", "", (421290, "EUR")),
        ("$7.05", "USD", (705, "USD")),
        ("\u00a312.00", " ", (1200, "GBP")),
        (" 12.90 EUR", "", (1290, "EUR")),
        ("12.90 gbp", " ", (1290, "GBP")),
        ("€ 3,00", "USD", (300, "USD")),
        ("-3.00", "EUR", (-300, "EUR")),
        ("3.00", "", (300, "")),
        ("3.00", "CHF", (300, "")),
        ("n/a", "USD", (None, "USD")),
        ("", "USD", (None, "USD")),
        ("NaN", "USD", (None, "USD")),
        ("Infinity", "USD", (None, "USD")),
    ],
)
def test_money_is_read_as_people_write_it(amount: str, currency: str, expected: tuple[int | None, str]) -> None:
    assert records.money(amount, currency) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (("100.00", "EUR", "damaged"), ("pay", 10000, "EUR", "damaged")),
        (("499.99", "EUR", " Wrong_Item "), ("pay", 49999, "EUR", "wrong item")),
        (("500.00", "EUR", "LATE  DELIVERY"), ("review", 50000, "EUR", "late delivery")),
        (("0.00", "EUR", "goodwill"), ("reject", 0, "EUR", "goodwill")),
        (("-5.00", "EUR", "goodwill"), ("reject", 0, "EUR", "goodwill")),
        (("n/a", "", ""), ("reject", 0, "none", "uncategorised")),
        (("5.00", "", ""), ("reject", 0, "none", "uncategorised")),
    ],
)
def test_a_row_is_paid_reviewed_or_rejected(row: tuple[str, str, str], expected: tuple[str, int, str, str]) -> None:
    amount, currency, category = row
    settlement = records.settle({"refund_id": "R", "amount": amount, "currency": currency, "category": category})
    assert settlement == Settlement("R", *expected)  # type: ignore[arg-type]  # the decision is a plain str here


def test_totals_count_and_add_up() -> None:
    totals = records.tally(
        [
            Settlement("1", "pay", 100, "EUR", "x"),
            Settlement("2", "pay", 250, "EUR", "x"),
            Settlement("3", "review", 7, "USD", "x"),
            Settlement("4", "reject", 0, "none", "x"),
        ]
    )
    assert totals == {
        "pay count": 2,
        "pay EUR cents": 350,
        "review count": 1,
        "review USD cents": 7,
        "reject count": 1,
    }


def test_the_shipped_file_is_what_the_generator_writes() -> None:
    shipped = Path(milepost_inspector.demo.__file__).with_name("refunds.csv").read_bytes()
    assert shipped == make_refunds.text().encode()
    assert len(shipped) < 600_000


def test_the_shipped_rows_are_many_distinct_and_partly_dirty() -> None:
    rows = records.load()
    assert len({row["refund_id"] for row in rows}) == len(rows) == 5000
    decisions = Counter(records.settle(row).decision for row in rows)
    assert min(decisions["pay"], decisions["review"], decisions["reject"]) > 20
    assert sum(row["amount"].replace(".", "").isdigit() and bool(row["currency"].strip()) for row in rows) < 4900
    assert any("\n" in row["note"] for row in rows)


def test_a_limit_takes_the_first_rows() -> None:
    assert records.load(3) == records.load()[:3]
    assert records.load(0) == []


def test_the_checksum_is_of_content_not_of_order() -> None:
    assert records.checksum({"a": 1, "b": "é"}) == records.checksum({"b": "é", "a": 1})
    assert records.checksum({"a": 1}) != records.checksum({"a": "1"})
