"""Tuning: what a model is tuned to, and the batches of it: given answers, or the model's own."""

from limpid.training.tuning.examples import HeldOut as HeldOut
from limpid.training.tuning.examples import order_of as order_of
from limpid.training.tuning.measured import Answer as Answer
from limpid.training.tuning.rollouts import Answerer as Answerer
from limpid.training.tuning.setting import example_batches as example_batches
from limpid.training.tuning.setting import require_answerable as require_answerable
from limpid.training.tuning.setting import require_comparable as require_comparable
from limpid.training.tuning.setting import require_rollouts as require_rollouts
