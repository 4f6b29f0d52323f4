"""The transformer at speed, in PyTorch; every quantity reports under its name when somebody listens."""

from limpid.model.cache import Cache as Cache
from limpid.model.observe import observed as observed
from limpid.model.transformer import Transformer as Transformer
from limpid.model.transformer import initialise as initialise
