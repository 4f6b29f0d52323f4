"""The transformer at speed, in PyTorch; every quantity is shown under its name to an observer."""

from limpid.model.cache import Cache as Cache
from limpid.model.observe import Mode as Mode
from limpid.model.transformer import Transformer as Transformer
from limpid.model.transformer import initialise as initialise
