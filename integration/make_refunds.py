"""Writes the CSV that the demo ships. `test_demo_records.py` holds the shipped file to it.

python integration/make_refunds.py > packages/milepost-inspector/src/milepost_inspector/demo/refunds.csv
"""

from __future__ import annotations

import csv
import io
import random
import sys
from datetime import date, timedelta

FIRST = [
    "Ana",
    "Björn",
    "Chloé",
    "Dmitri",
    "Elif",
    "Fatima",
    "Grzegorz",
    "Hanna",
    "Ines",
    "Jürgen",
    "Kofi",
    "Łucja",
    "Mei",
    "Nils",
    "Oğuz",
    "Priya",
    "Quentin",
    "Rosa",
    "Søren",
    "Zoë",
]
LAST = [
    "Andersson",
    "Brandt",
    "Căpraru",
    "Dubois",
    "Eriksen",
    "Ferrari",
    "García",
    "Håkansson",
    "Ionescu",
    "Jansen",
    "Kowalski",
    "Lindqvist",
    "Müller",
    "Nowak",
    "O'Brien",
    "Papadopoulos",
    "Rossi",
    "Šimić",
    "Tanaka",
    "Weiß",
]
CATEGORIES = ["damaged", "late delivery", "wrong item", "cancelled order", "overcharged", "goodwill"]
NOTES = [
    "",
    "",
    "",
    "customer called twice",
    "see ticket, photos attached",
    'said "never arrived"',
    "gift 🎁",
    "VIP",
    "first line\nsecond line",
]


def amount_text(cents: int, currency: str, rng: random.Random) -> tuple[str, str]:
    """The amount and currency columns: most rows are clean, one in eight is as people type."""
    plain = f"{cents / 100:.2f}"
    if rng.random() < 0.875:
        return plain, currency
    sign = {"EUR": "€", "USD": "$", "GBP": "£"}[currency]
    comma = f"{cents // 100:,}".replace(",", ".") + f",{cents % 100:02d}"
    return rng.choice(
        [
            (f"{cents / 100:,.2f}", currency.lower()),
            (f"{sign} {comma}", ""),
            (f"{sign}{plain}", currency),
            (f" {plain} {currency}", ""),
            (f"{plain} {currency.lower()}", " "),
            ("n/a", currency),
            ("", currency),
            (f"-{plain}", currency),
            (plain, ""),
        ]
    )


def rows(count: int = 5000, seed: int = 20261129) -> list[list[str]]:
    rng = random.Random(seed)
    lines: list[list[str]] = []
    for number in range(1, count + 1):
        cents = min(int(rng.lognormvariate(8.2, 1.1)) + 99, 499_999)
        currency = rng.choices(["EUR", "USD", "GBP"], [6, 3, 1])[0]
        amount, code = amount_text(cents, currency, rng)
        day = date(2026, 1, 2) + timedelta(days=number * 300 // count)
        category = rng.choice(CATEGORIES)
        if rng.random() < 0.08:
            category = rng.choice(["", category.upper(), category.replace(" ", "_"), f" {category} "])
        lines.append(
            [
                f"RF-{number:06d}",
                day.isoformat() if rng.random() < 0.95 else day.strftime("%d.%m.%Y"),
                f"{rng.choice(FIRST)} {rng.choice(LAST)}" if rng.random() < 0.99 else "",
                f"SO-{rng.randrange(10**7):07d}",
                amount,
                code,
                category,
                rng.choice(NOTES),
            ]
        )
    return lines


def text() -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["refund_id", "requested", "customer", "order", "amount", "currency", "category", "note"])
    writer.writerows(rows())
    return out.getvalue()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="")  # type: ignore[union-attr]  # a real stdout, never replaced here
    sys.stdout.write(text())
