"""limpid's own kernels in C++, for processors whose libraries stop short; compiled on the machine that runs them."""
