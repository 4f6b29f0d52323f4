"""What PyTorch's documentation asks of the arguments that a training loop passes: one table of functions."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import distributions

from limpid.doctor.contracts import alignment, logarithms, losses, pairs
from limpid.doctor.contracts.contract import Breach, Contract
from limpid.doctor.contracts.layers import LayerProbe, after_dropout

FROM_A_LAYER = (
    *("cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
)
"""Losses of what a last layer returned."""

CONTRACTS = (
    Contract(F, "cross_entropy", losses.cross_entropy),
    Contract(F, "binary_cross_entropy", losses.binary),
    Contract(F, "binary_cross_entropy_with_logits", losses.binary_with_logits),
    Contract(F, "multilabel_soft_margin_loss", losses.multilabel_soft_margin),
    Contract(F, "multilabel_margin_loss", losses.multilabel_margin),
    Contract(F, "poisson_nll_loss", losses.poisson),
    Contract(F, "poisson_nll_loss", logarithms.poisson_rates),
    Contract(F, "gaussian_nll_loss", losses.gaussian),
    Contract(F, "nll_loss", logarithms.nll),
    Contract(F, "kl_div", logarithms.kl),
    Contract(F, "gumbel_softmax", logarithms.gumbel),
    Contract(distributions.Categorical, "__init__", logarithms.categorical),
    Contract(distributions.Bernoulli, "__init__", logarithms.bernoulli),
    Contract(F, "soft_margin_loss", pairs.soft_margin),
    Contract(F, "hinge_embedding_loss", pairs.hinge_embedding),
    Contract(F, "margin_ranking_loss", pairs.margin_ranking),
    Contract(F, "cosine_embedding_loss", pairs.cosine_embedding),
    Contract(F, "triplet_margin_loss", pairs.triplet),
    Contract(F, "ctc_loss", alignment.ctc),
    *(Contract(F, name, partial(after_dropout, name)) for name in FROM_A_LAYER),
)

__all__ = ["CONTRACTS", "Breach", "Contract", "LayerProbe"]
