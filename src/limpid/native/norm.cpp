// Layer norm and RMS norm of a float32 stream, its result in bfloat16; backward in one pass over the stream. What is
// written to the stream before, and what reads it beside the norm, belong to the same passes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t ROWS = 64;  // that one thread takes at a time; sums over rows are added up in this order

// Mean (0 without centring) and 1 / deviation of a row.
struct Moments {
    float mean, inverse;
};

inline Moments moments(const float* x, int64_t d, bool centred, float eps) {
    float mean = 0.0f;
    if (centred) {
        __m512 sum = all(0.0f);
        for (int64_t j = 0; j < d; j += LANES) sum = _mm512_add_ps(sum, _mm512_loadu_ps(x + j));
        mean = _mm512_reduce_add_ps(sum) / (float)d;
    }
    __m512 squares = all(0.0f);
    for (int64_t j = 0; j < d; j += LANES) {
        __m512 away = _mm512_sub_ps(_mm512_loadu_ps(x + j), all(mean));
        squares = _mm512_fmadd_ps(away, away, squares);
    }
    return {mean, 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / (float)d + eps)};
}

}  // namespace

extern "C" {

// y = (x - mean) / deviation * weight + bias; without a bias, x / rms(x) * weight. d is a multiple of 16. Where
// something is written, x is first the sum with it.
void norm_forward(const float* x, const uint16_t* written, float* sum, const float* weight, const float* bias,
                  float eps, uint16_t* y, float* kept, int64_t rows, int64_t d, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float* row = x + i * d;
        if (written) {
            float* added = sum + i * d;
            for (int64_t j = 0; j < d; j += LANES)
                _mm512_storeu_ps(added + j, _mm512_add_ps(_mm512_loadu_ps(row + j), widened(written + i * d + j)));
            row = added;
        }
        Moments found = moments(row, d, bias != nullptr, eps);
        kept[2 * i] = found.mean, kept[2 * i + 1] = found.inverse;
        for (int64_t j = 0; j < d; j += LANES) {
            __m512 hat = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + j), all(found.mean)), all(found.inverse));
            __m512 shift = bias ? _mm512_loadu_ps(bias + j) : all(0.0f);
            store_rounded(y + i * d + j, _mm512_fmadd_ps(hat, _mm512_loadu_ps(weight + j), shift));
        }
    }
}

// x_bar = (g - mean(g) - x_hat mean(g x_hat)) / deviation, g = y_bar weight; mean(g) is left out without a bias. Where
// something else reads x its gradient is added; where something was written it is given the sum.
void norm_backward(const float* x, const float* weight, const float* kept, const uint16_t* y_bar, const float* beside,
                   float* x_bar, uint16_t* written_bar, float* weight_bar, float* bias_bar, int64_t rows, int64_t d,
                   int threads) {
    const int64_t chunks = (rows + ROWS - 1) / ROWS;
    std::vector<float> sums(2 * chunks * d, 0.0f);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        float *weights = sums.data() + 2 * chunk * d, *biases = weights + d;
        for (int64_t i = chunk * ROWS; i < std::min(rows, (chunk + 1) * ROWS); i++) {
            const float* row = x + i * d;
            const uint16_t* bar = y_bar + i * d;
            const __m512 mean = all(kept[2 * i]), inverse = all(kept[2 * i + 1]);
            __m512 plain = all(0.0f), along = all(0.0f);
            for (int64_t j = 0; j < d; j += LANES) {
                __m512 hat = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + j), mean), inverse),
                       y = widened(bar + j);
                __m512 g = _mm512_mul_ps(y, _mm512_loadu_ps(weight + j));
                plain = _mm512_add_ps(plain, g);
                along = _mm512_fmadd_ps(g, hat, along);
                _mm512_storeu_ps(weights + j, _mm512_fmadd_ps(y, hat, _mm512_loadu_ps(weights + j)));
                if (bias_bar) _mm512_storeu_ps(biases + j, _mm512_add_ps(y, _mm512_loadu_ps(biases + j)));
            }
            const __m512 middle = all(bias_bar ? _mm512_reduce_add_ps(plain) / (float)d : 0.0f);
            const __m512 slope = all(_mm512_reduce_add_ps(along) / (float)d);
            for (int64_t j = 0; j < d; j += LANES) {
                __m512 hat = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + j), mean), inverse);
                __m512 g = _mm512_fmsub_ps(widened(bar + j), _mm512_loadu_ps(weight + j), middle);
                __m512 whole = _mm512_mul_ps(_mm512_fnmadd_ps(hat, slope, g), inverse);
                if (beside) whole = _mm512_add_ps(whole, _mm512_loadu_ps(beside + i * d + j));
                _mm512_storeu_ps(x_bar + i * d + j, whole);
                if (written_bar) store_rounded(written_bar + i * d + j, whole);
            }
        }
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t j = 0; j < d; j++) {
            weight_bar[j] = (chunk ? weight_bar[j] : 0.0f) + sums[2 * chunk * d + j];
            if (bias_bar) bias_bar[j] = (chunk ? bias_bar[j] : 0.0f) + sums[(2 * chunk + 1) * d + j];
        }
}
}
