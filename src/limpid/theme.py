"""What a style means, in one place: everything that is printed in colour says which of these it is.

Colours are of the 256 that terminals share, chosen by their luminance: each stands out from white and from the dark
grey of editors (#1e1e1e) by a contrast of 3.5 at least. No colour has more than 4.1 on both; WCAG 2.1, section 1.4.3,
asks 3 of large letters and 4.5 of small ones. A terminal of 16 colours shows the nearest.
What a colour says is always said in words or by a sign too.
"""

from __future__ import annotations

FORWARD = "color(32)"
"""Blue: the forward pass, from the tokens to the loss."""
BACKWARD = "color(196)"
"""Red: the backward pass, from the loss to the tokens."""
UPDATE = "color(28)"
"""Green: clipping, learning rate, moments, parameters."""

GOOD = "color(28)"
"""A check that held."""
WARNING = "color(166)"
"""What should be looked at, or what was not measured."""
FAULT = "color(196)"
"""What is wrong."""
ALARM = f"bold white on {FAULT}"
"""A number that is wrong, inside a line of right ones."""

HEADING = "bold"
QUIET = "dim"
"""What stands beside: sources, columns' heads, notes."""

SEVERITY = {"fault": FAULT, "warning": WARNING, "notice": QUIET}
"""Of a finding."""
