"""The account of a recorded step: what every call of it adds to the number that the backward pass began at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.maths.account import Account as Account
from limpid.maths.account import Part, account_of
from limpid.operations.call import Check

if TYPE_CHECKING:
    from limpid.operations.report import Report


def account(report: Report, of: str, exact: float | None) -> Account:
    """The account of what the backward pass began at."""
    parts = [
        Part(call.module, f"{call.operation} {call.dtype}", call.error, call.inherited_error) for call in report.calls
    ]
    unknown = sum(call.phase == "forward" and call.check is Check.UNCHECKED for call in report.calls)
    return account_of(of, parts, unknown=unknown, engine=report.began, exact=exact)
