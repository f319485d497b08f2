"""The refunds that the demo settles: a CSV as an export would hand it over, dirty rows included."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from importlib import resources
from typing import Literal

CURRENCIES = {"EUR": "EUR", "€": "EUR", "USD": "USD", "$": "USD", "GBP": "GBP", "£": "GBP"}
REVIEW_FROM_CENTS = 50_000
"""Refunds of this amount or more are not paid without a person looking at them."""

Row = dict[str, str]
Decision = Literal["pay", "review", "reject"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to be done about one refund."""

    refund: str
    decision: Decision
    cents: int
    currency: str
    category: str


def load(limit: int | None = None) -> list[Row]:
    """The first `limit` rows of the shipped CSV (all of them with None), as text, as they stand."""
    text = resources.files("milepost_inspector.demo").joinpath("refunds.csv").read_text("utf-8")
    return list(itertools.islice(csv.DictReader(io.StringIO(text, newline="")), limit))


def settle(row: Mapping[str, str]) -> Settlement:
    """Decide about one row: amounts that cannot be read are rejected, large ones go to review, the rest is paid."""
    cents, currency = money(row["amount"], row["currency"])
    category = re.sub(r"[\s_-]+", " ", row["category"]).strip().lower() or "uncategorised"
    if cents is None or not currency or cents <= 0:
        return Settlement(row["refund_id"], "reject", 0, currency or "none", category)
    decision: Decision = "review" if cents >= REVIEW_FROM_CENTS else "pay"
    return Settlement(row["refund_id"], decision, cents, currency, category)


def money(amount: str, currency: str) -> tuple[int | None, str]:
    """Cents and ISO code from texts such as ``1,234.50``, ``€ 12,90`` or ``12.90 eur``; None for what is no amount."""
    text = amount.replace("\u00a0", " ").strip().upper()
    code = CURRENCIES.get(currency.strip().upper(), "")
    for sign, iso in CURRENCIES.items():
        if sign in text:
            text, code = text.replace(sign, "").strip(), code or iso
    if re.fullmatch(r"-?\d{1,3}(\.\d{3})*,\d{2}", text):
        text = text.replace(".", "").replace(",", ".")
    try:
        value = Decimal(text.replace(",", "").replace(" ", ""))
    except InvalidOperation:
        return None, code
    return (int(value * 100) if value.is_finite() else None), code


def checksum(payload: Mapping[str, object]) -> str:
    """A short digest of an effect's payload, the same for the agent, the world and the audit."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def payload(settlement: Settlement) -> dict[str, object]:
    """The settlement as it is sent to the world."""
    return asdict(settlement)


def tally(settlements: Iterable[Settlement]) -> dict[str, int]:
    """Counts per decision and cents per decision and currency: what the state's `totals` must say in the end."""
    totals: Counter[str] = Counter()
    for settlement in settlements:
        totals[f"{settlement.decision} count"] += 1
        if settlement.cents:
            totals[f"{settlement.decision} {settlement.currency} cents"] += settlement.cents
    return dict(totals)
