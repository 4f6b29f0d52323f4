// Matrices in the layout that oneDNN's products of bfloat16 read (AB16b64a2b), rounded from float32: for 64 outputs at
// a time, pairs of inputs side by side. What lies beyond the matrix is 0 before, and left so.
#include <algorithm>

#include "vectors.h"

namespace {

constexpr int64_t OUTPUTS = 64;  // of a block
constexpr int64_t INPUTS = 32;   // of a tile

inline int64_t upwards(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// The processor itself looks less far, or sees too many rows; what lies behind the last one is only asked for.
inline void soon(const float* x) { _mm_prefetch((const char*)x, _MM_HINT_T0); }

// Sixteen numbers as bfloat16 in the lower half of each lane; 0 where there are fewer.
inline __m512i narrow(const float* x, __mmask16 some) {
    return _mm512_cvtepu16_epi32(rounded(_mm512_maskz_loadu_ps(some, x)));
}

// Numbers of two rows, side by side; `below` is null behind the last row.
inline __m512i paired(const float* above, const float* below, __mmask16 some) {
    __m512i first_row = narrow(above, some);
    return below ? _mm512_or_si512(first_row, _mm512_slli_epi32(narrow(below, some), 16)) : first_row;
}

// Thirty-two numbers of a row as sixteen pairs; 0 where there are fewer.
inline __m512i pairs(const float* x, int64_t count) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(first(count - LANES), x + LANES),
                                        _mm512_maskz_loadu_ps(first(count), x));
}

// Rows become columns.
inline void transpose(__m512i (&x)[LANES]) {
    __m512i y[LANES];
    for (int i = 0; i < LANES; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + 2 + j]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < LANES; j += 8) {
            y[j + i] = _mm512_shuffle_i32x4(x[j + i], x[j + 4 + i], 0x88);
            y[j + 4 + i] = _mm512_shuffle_i32x4(x[j + i], x[j + 4 + i], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    }
}

}  // namespace

extern "C" {

// For x W^T: rows of W are outputs.
void pack_rows(const float* w, uint16_t* packed, int64_t rows, int64_t columns, int threads) {
    const int64_t deep = upwards(columns, INPUTS);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < rows; n += LANES) {
        uint16_t* to = packed + n / OUTPUTS * OUTPUTS * deep + 2 * (n % OUTPUTS);
        for (int64_t k = 0; k < columns; k += INPUTS) {
            __m512i tile[LANES];
            for (int64_t i = 0; i < LANES; i++) {
                const float* row = w + (n + i) * columns + k;
                soon(row + 2 * INPUTS), soon(row + 2 * INPUTS + LANES);
                tile[i] = n + i < rows ? pairs(row, columns - k) : _mm512_setzero_si512();
            }
            transpose(tile);
            for (int64_t pair = 0; pair < LANES; pair++) _mm512_storeu_si512(to + (k + 2 * pair) * OUTPUTS, tile[pair]);
        }
    }
}

// For y W: columns of W are outputs, two of its rows a pair of inputs.
void pack_columns(const float* w, uint16_t* packed, int64_t rows, int64_t columns, int threads) {
    const int64_t block = OUTPUTS * upwards(rows, INPUTS);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t m = 0; m < rows; m += INPUTS)
        for (int64_t n = m; n < std::min(m + INPUTS, rows); n += 2)
            for (int64_t k = 0; k < columns; k += LANES) {
                const float *above = w + n * columns + k, *below = n + 1 < rows ? above + columns : nullptr;
                soon(above + 2 * columns), soon(above + 3 * columns);
                uint16_t* to = packed + k / OUTPUTS * block + n * OUTPUTS + 2 * (k % OUTPUTS);
                _mm512_storeu_si512(to, paired(above, below, first(columns - k)));
            }
}
}
