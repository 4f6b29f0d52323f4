// Sixteen float32 numbers at a time: between bfloat16 and float32, and exponentials.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int LANES = 16;

// The lanes of the next numbers of which `count` are left.
inline __mmask16 first(int64_t count) {
    return count >= LANES ? (__mmask16)0xffff : count <= 0 ? (__mmask16)0 : (__mmask16)((1u << count) - 1);
}

inline __m512 widened(__m256i x) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }

inline __m512 widened(const uint16_t* x) { return widened(_mm256_loadu_si256((const __m256i*)x)); }

inline __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

inline void store_rounded(uint16_t* out, __m512 x) { _mm256_storeu_si256((__m256i*)out, rounded(x)); }

inline __m512 all(float x) { return _mm512_set1_ps(x); }

// 2^f on [-1/2, 1/2], within 1e-7 of it.
inline __m512 exp2_near_0(__m512 f) {
    __m512 y = all(1.326469239e-3f);
    y = _mm512_fmadd_ps(y, f, all(9.671516532e-3f));
    y = _mm512_fmadd_ps(y, f, all(5.550733863e-2f));
    y = _mm512_fmadd_ps(y, f, all(2.402224203e-1f));
    y = _mm512_fmadd_ps(y, f, all(6.931469775e-1f));
    return _mm512_fmadd_ps(y, f, all(1.0f));
}

// 2^x for x <= 128. What is no number stays none: of two, max gives the second.
inline __m512 exp2_of(__m512 x) {
    x = _mm512_max_ps(all(-150.0f), x);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(exp2_near_0(_mm512_sub_ps(x, n)), n);
}

// 1 / x for x of middling size, within a unit of the last place or two.
inline __m512 inverse_of(__m512 x) {
    __m512 y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, all(2.0f)));
}

}  // namespace
