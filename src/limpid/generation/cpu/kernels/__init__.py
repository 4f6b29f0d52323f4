"""One position of every row through the whole model in one compiled call: twin of `Transformer.forward`.

At one position the weights are read once for very few products, so time goes to memory and to calls; this leaves
only the first. Every operation is written in the order in which it is rounded, sums over many entries as vectors of a
fixed width: bits depend neither on the processor, nor on threads, nor on what the compiler makes of it.
"""
