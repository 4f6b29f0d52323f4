"""Which function here answers each kind of published number: importing a file registers its kinds."""

from limpid.equations.answers import adapters as adapters
from limpid.equations.answers import cluster as cluster
from limpid.equations.answers import decoding as decoding
from limpid.equations.answers import flops as flops
from limpid.equations.answers import information as information
from limpid.equations.answers import memory as memory
from limpid.equations.answers import operations as operations
from limpid.equations.answers import parameters as parameters
from limpid.equations.answers import preferences as preferences
from limpid.equations.answers import scaling as scaling
from limpid.equations.answers import tokens as tokens
from limpid.equations.answers import updates as updates
from limpid.equations.answers.kinds import KINDS as KINDS
