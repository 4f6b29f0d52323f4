"""Derived backward passes over many seeds: python -m benchmarks.derivations [SEEDS]

Of all: spellings of the right gradient that are refused, slips that are not named, and how many random expressions of
the quantities at hand are taken for a slip.
"""

import argparse

import numpy as np

from limpid.errors import LimpidError
from limpid.primer.puzzles.derive.derivation import CASES, Derivation, derivation

SPELLINGS = {
    "softmax": (
        "p*g - p*sum(p*g)", "dz = p * (g - g @ p)", "(diag(p) - outer(p, p)) @ g",
        "p * (g - np.sum(g * p, keepdims=True))", "p · (g − (g·p).sum())", "g*softmax(z) - softmax(z)*dot(p, g)",
    ),
    "softmax with a temperature": ("softmax(z/T) * (g - sum(g*p)) / T", "p*g/T - p*sum(p*g)/T"),
    "log-softmax": ("g - sum(g)*p", "g - g.sum() * softmax(z)", "-(p*sum(g)-g)"),
    "log of a sum of exponentials": ("g * softmax(z)", "g * exp(z) / sum(exp(z))", "g*np.exp(z)/np.exp(y)"),
    "RMSNorm by its input": (
        "w*g/r - x*mean(w*g*x)/r**3", "(g*w - h*(g*w*h).mean())/r", "(w*g - h*sum(w*g*h)/n)/r",
        "w*g/r - x·(x@(w*g))/(n·r³)",
    ),
    "LayerNorm by its input": (
        "(w*g - (w*g).mean() - h*(w*g*h).mean())/s", "(n*w*g - sum(w*g) - h*sum(w*g*h))/(n*s)",
        "w*g/s - mean(w*g)/s - h*mean(w*g*h)/s",
    ),
    "SiLU": ("g*s*(1 + x*(1 - s))", "g*(sigmoid(x) + x*sigmoid(x)*(1-sigmoid(x)))", "g*(silu(x) + s*(1 - silu(x)))"),
    "GELU": ("g*c + g*x*d", "g*(c + x*exp(-x²/2)/sqrt(2*3.141592653589793))"),
    "tanh": ("g*(1 - tanh(x)**2)", "g*(1-y)*(1+y)", "g - g*y²", "g*(1 - y^2)"),
    "sigmoid": ("g*(y - y*y)", "g*exp(-x)*y**2", "g * sigmoid(x) * (1 - sigmoid(x))"),
    "SwiGLU by its gate": ("g*u*s*(1 + a*(1-s))", "(g*u) * (s + a*s - a*s**2)"),
    "SwiGLU by what is gated": ("g*silu(a)", "a*sigmoid(a)*g"),
    "a residual sum": ("g*(2 - f²)", "g + (1-tanh(x)**2)*g", "2*g - g*f*f"),
    "a scaled dot product": ("g*k/n**0.5", "(g/√(n))*k", "k*g*n**-0.5"),
    "a length": ("g*x/norm(x)", "x*g/sqrt(sum(x**2))", "g*x/(x@x)**0.5"),
    "a cosine": ("g*y/(m*n) - g*c*x/m**2", "(g/m)*(y/n - c*x/m)", "g*(y/norm(y) - dot(x,y)*x/(m**2*n))/m"),
    "a matrix product by its left factor": ("np.matmul(G, W.T)", "G @ transpose(W)", "(W @ G.T).T"),
    "a matrix product by its right factor": ("matmul(X.T, G)", "(G.T @ X).T", "Xᵀ @ G"),
    "a linear layer's weight, as PyTorch keeps it": ("(X.T @ G).T", "matmul(transpose(G), X)"),
    "a linear layer's offset": ("G.sum(0)", "np.sum(G, axis=-2)", "b * mean(G, 0)", "G.T.sum(1)"),
    "RMSNorm's gain": ("(G*H).sum(0)", "sum(G*X/R, 0)", "np.sum(H*G, axis=0)"),
    "the loss of logits": ("P/b - Y/b", "(softmax(Z) - Y)/b", "-(Y-P)/b"),
    "attention's scores by the queries": ("(G/sqrt(d)) @ K", "np.matmul(G, K) * d**-0.5"),
    "attention's scores by the keys": ("(Q.T @ G).T / sqrt(d)", "transpose(G) @ Q / d**0.5"),
    "attention's weights": ("A*G - A*(A*G).sum(-1, keepdims=True)", "A*(G - np.sum(A*G, axis=-1, keepdims=True))"),
    "attention's mix by the values": ("(G.T @ A).T", "matmul(A.T, G)"),
    "attention's mix by the weights": ("(V @ G.T).T", "matmul(G, V.T)"),
}  # fmt: skip
"""Of each operation, the right gradient written otherwise."""


def random_expression(derived: Derivation, rng: np.random.Generator) -> str:
    """Of three to six quantities at hand, joined at random."""
    names = list(derived.names[0])
    said = str(rng.choice(names))
    for _ in range(int(rng.integers(2, 6))):
        other = str(rng.choice(names))
        other = f"{rng.choice(['sum', 'mean', 'exp', 'tanh', 'sigmoid'])}({other})" if rng.random() < 0.3 else other
        said = f"({said}) {rng.choice(['+', '-', '*', '/'])} {other}"
    return said


def measured(seeds: int) -> tuple[int, int, int, int, int, int, int]:
    """Spellings and those refused, slips and those not named, random expressions, those named, those called right."""
    rng = np.random.Generator(np.random.PCG64(0))
    spelled = refused = slips = unnamed = tried = named = right = 0
    for seed in range(seeds):
        derived = derivation(seed)
        for text in (derived.case.right, *SPELLINGS[derived.case.name]):
            spelled, refused = spelled + 1, refused + (outcome(derived, text) != "right")
        for slip in derived.case.slips:
            slips, unnamed = slips + 1, unnamed + (outcome(derived, slip.way) != slip.note)
        for _ in range(4):
            said = outcome(derived, random_expression(derived, rng))
            tried += said != "unread"
            right += said == "right"
            named += said not in ("unread", "wrong", "shape", "right")
    return spelled, refused, slips, unnamed, tried, named, right


def outcome(derived: Derivation, text: str) -> str:
    """The note of a grade; unread where there is none."""
    try:
        return derived.judged(text).note
    except LimpidError:
        return "unread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=10_000)
    seeds = parser.parse_args().seeds
    spelled, refused, slips, unnamed, tried, named, right = measured(seeds)
    print(f"{seeds:,} seeds of {len(CASES)} operations")
    print(f"right gradients refused: {refused} of {spelled:,}")
    print(f"slips not named: {unnamed} of {slips:,}")
    print(f"random expressions named as a slip: {named} of {tried:,}; taken for right: {right}")


if __name__ == "__main__":
    main()
