// Products of bfloat16 in registers: pairs along the sum are multiplied and added into float32 (vdpbf16ps).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace {

using Pair = uint32_t;  // two bfloat16

constexpr int ROWS = 6;  // of a tile: 24 sums, 4 numbers of the right factor and one of the left fill the registers

// C = A B, or C += A B: MR rows of A against 16 NR columns of B, `pairs` steps.
template <int MR, int NR>
inline void tile(const Pair* a, ptrdiff_t a_row, ptrdiff_t a_step, const Pair* b, ptrdiff_t b_step, int64_t pairs,
                 float* c, ptrdiff_t c_row, bool add) {
    __m512 sums[MR][NR];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++)
            sums[i][j] = add ? _mm512_loadu_ps(c + i * c_row + LANES * j) : _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++) {
        __m512i right[NR];
        for (int j = 0; j < NR; j++) right[j] = _mm512_loadu_si512(b + k * b_step + LANES * j);
        for (int i = 0; i < MR; i++) {
            __m512bh left = (__m512bh)_mm512_set1_epi32((int)a[i * a_row + k * a_step]);
            for (int j = 0; j < NR; j++) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], left, (__m512bh)right[j]);
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++) _mm512_storeu_ps(c + i * c_row + LANES * j, sums[i][j]);
}

template <int NR>
inline void rows(int count, const Pair* a, ptrdiff_t a_row, ptrdiff_t a_step, const Pair* b, ptrdiff_t b_step,
                 int64_t pairs, float* c, ptrdiff_t c_row, bool add) {
    switch (count) {
        case 1:
            return tile<1, NR>(a, a_row, a_step, b, b_step, pairs, c, c_row, add);
        case 2:
            return tile<2, NR>(a, a_row, a_step, b, b_step, pairs, c, c_row, add);
        case 3:
            return tile<3, NR>(a, a_row, a_step, b, b_step, pairs, c, c_row, add);
        case 4:
            return tile<4, NR>(a, a_row, a_step, b, b_step, pairs, c, c_row, add);
        case 5:
            return tile<5, NR>(a, a_row, a_step, b, b_step, pairs, c, c_row, add);
        default:
            return tile<6, NR>(a, a_row, a_step, b, b_step, pairs, c, c_row, add);
    }
}

// The same for any number of columns.
inline void product(int count, int columns, const Pair* a, ptrdiff_t a_row, ptrdiff_t a_step, const Pair* b,
                    ptrdiff_t b_step, int64_t pairs, float* c, ptrdiff_t c_row, bool add) {
    for (int j = 0; j < columns; j += 4, b += 4 * LANES, c += 4 * LANES) switch (columns - j) {
            case 1:
                rows<1>(count, a, a_row, a_step, b, b_step, pairs, c, c_row, add);
                break;
            case 2:
                rows<2>(count, a, a_row, a_step, b, b_step, pairs, c, c_row, add);
                break;
            case 3:
                rows<3>(count, a, a_row, a_step, b, b_step, pairs, c, c_row, add);
                break;
            default:
                rows<4>(count, a, a_row, a_step, b, b_step, pairs, c, c_row, add);
        }
}

// Two rows of bfloat16, entry by entry.
inline __m512i paired(__m256i first, __m256i second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// 16 rows of 16 pairs, transposed.
inline void transpose(__m512i* r) {
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

// x (positions, d) as pairs along d: (d / 2, width), zeros beyond the positions.
inline void pack_along_features(const uint16_t* x, int64_t stride, int64_t positions, int64_t d, Pair* out,
                                int64_t width) {
    for (int64_t t = 0; t < width; t += LANES)
        for (int64_t p = 0; p < d / 2; p += LANES) {
            int64_t count = std::min<int64_t>(LANES, d / 2 - p);
            __mmask16 some = (__mmask16)((1u << count) - 1);
            __m512i r[LANES];
            for (int i = 0; i < LANES; i++)
                r[i] = t + i < positions ? _mm512_maskz_loadu_epi32(some, x + (t + i) * stride + 2 * p)
                                         : _mm512_setzero_si512();
            transpose(r);
            for (int64_t i = 0; i < count; i++) _mm512_storeu_si512(out + (p + i) * width + t, r[i]);
        }
}

// x (positions, d) as pairs along positions: (positions / 2, d), a zero in the place of a last one that is missing.
inline void pack_along_positions(const uint16_t* x, int64_t stride, int64_t positions, int64_t rows, int64_t d,
                                 Pair* out) {
    for (int64_t t = 0; t < rows; t += 2)
        for (int64_t j = 0; j < d; j += LANES) {
            auto half = [&](int64_t at) {
                return at < positions ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(x + at * stride + j)))
                                      : _mm512_setzero_si512();
            };
            _mm512_storeu_si512(out + t / 2 * d + j, _mm512_or_si512(half(t), _mm512_slli_epi32(half(t + 1), 16)));
        }
}

}  // namespace
