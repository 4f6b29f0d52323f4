// What the kernels share: a register of 16 float32, and how many of its lanes are left at the end of a row.
#pragma once
#include <immintrin.h>

#include <cstdint>

constexpr int LANES = 16;

// The lanes of the next numbers of which `count` are left.
inline __mmask16 first(int64_t count) {
    return count >= LANES ? (__mmask16)0xffff : count <= 0 ? (__mmask16)0 : (__mmask16)((1u << count) - 1);
}
