// Each pair of features of queries and keys turned by an angle: bfloat16 heads, float32 angles.
#include "vectors.h"

namespace {

// One head: the two features of a pair lie side by side, or half a head apart.
inline void turned(const uint16_t* x, const float* cos, const float* sin, float sign, bool halves, int64_t pairs,
                   uint16_t* y) {
    for (int64_t p = 0; p < pairs; p += LANES) {
        const int64_t left = pairs - p;
        const __mmask16 some = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        __m512 c = _mm512_maskz_loadu_ps(some, cos + p),
               s = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, sin + p), all(sign));
        __m512 first, second;
        if (halves) {
            first = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, x + p)), 16);
            second =
                (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, x + pairs + p)), 16);
        } else {
            __m512i both = _mm512_maskz_loadu_epi32(some, x + 2 * p);
            first = (__m512)_mm512_slli_epi32(both, 16);
            second = (__m512)_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000));
        }
        __m512 one = _mm512_fnmadd_ps(second, s, _mm512_mul_ps(first, c)),
               other = _mm512_fmadd_ps(first, s, _mm512_mul_ps(second, c));
        if (halves) {
            _mm256_mask_storeu_epi16(y + p, some, rounded(one));
            _mm256_mask_storeu_epi16(y + pairs + p, some, rounded(other));
        } else {
            __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(rounded(one)),
                                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(other)), 16));
            _mm512_mask_storeu_epi32(y + 2 * p, some, pair);
        }
    }
}

}  // namespace

extern "C" {

// x (rows, heads, 2 pairs), rows of the batch after one another, `positions` angles for each; sign -1 turns back.
// Angles of another batch row begin `angle_step` positions later: 0 where all rows share them.
void rotation(const uint16_t* x, int64_t x_row, const float* cos, const float* sin, int64_t angle_step, float sign,
              int halves, uint16_t* y, int64_t rows, int64_t positions, int64_t heads, int64_t pairs, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = (i / positions * angle_step + i % positions) * pairs;
        for (int64_t h = 0; h < heads; h++)
            turned(x + i * x_row + h * 2 * pairs, cos + at, sin + at, sign, halves != 0, pairs,
                   y + (i * heads + h) * 2 * pairs);
    }
}
}
