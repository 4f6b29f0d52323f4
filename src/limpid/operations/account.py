"""The account of a recorded step: what every call of it adds to the loss, or to a number of the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.maths.account import Account as Account
from limpid.maths.account import Part, account_of
from limpid.operations.call import Call, Check
from limpid.operations.gradients.projection import LOSS, found_in

if TYPE_CHECKING:
    from limpid.operations.report import Report


def account(report: Report, of: str, exact: float | None) -> Account:
    """The account of what the backward pass began at, or of a number of the gradient that it ended at.

    Raises  ConfigError for a number that was not asked for
    """
    if of == LOSS and of not in report.projected:
        parts = [_part(call, call.error, call.inherited_error, call.beyond) for call in report.calls]
        unknown = sum(call.phase == "forward" and call.check is Check.UNCHECKED for call in report.calls)
        return account_of(of, parts, unknown=unknown, engine=report.began, exact=exact)
    found = found_in(report.projected, of)
    parts = [
        _part(report.calls[number], error, beyond=found.beyond.get(number, 0.0))
        for number, error in sorted(found.errors.items())
    ]
    return account_of(of, parts, unknown=found.unknown, engine=found.engine, exact=exact)


def _part(call: Call, error: float, inherited: float = 0.0, beyond: float = 0.0) -> Part:
    return Part(call.module, f"{call.operation} {call.dtype}", error, inherited, beyond)
