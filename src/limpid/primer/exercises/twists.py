"""What goes wrong at the end of many a calculation."""

import math

from limpid.primer.exercise import Twist

BASE_2 = Twist("base-2", lambda x: x / math.log(2), "This counts in bits, by the logarithm to base 2; ln is to base e.")
BASE_10 = Twist("base-10", lambda x: x / math.log(10), "This is the logarithm to base 10; ln is to base e = 2.718….")


def sign(why: str) -> Twist:
    """The sign is the other one, and why it cannot be."""
    return Twist("sign", lambda x: -x, why)
