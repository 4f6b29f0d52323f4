// Rows of bfloat16 logits: their softmax, their loss, and the gradient of the loss in their place. The exponentials of
// a row stay in the cache until their sum is known.
#include <cmath>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

// e^x for x <= 0, within 2 units of the last place: 2^n e^r with |r| <= ln 2 / 2 (Cody & Waite 1980, chapter 6).
inline __m512 exp_of(__m512 x) {
    x = _mm512_max_ps(all(-150.0f), x);  // in this order what is no number stays none
    __m512 n = _mm512_mul_ps(x, all(1.44269504f));
    n = _mm512_roundscale_ps(n, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, all(0.693359375f), x);  // ln 2, the first part so short that n times it is exact
    r = _mm512_fnmadd_ps(n, all(-2.12194440e-4f), r);
    __m512 y = all(1.98412698e-4f);
    for (float c : {1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f, 1.0f, 1.0f})
        y = _mm512_fmadd_ps(y, r, all(c));
    return _mm512_scalef_ps(y, n);
}

// 16 logits; beyond the row -infinity.
inline __m512 read(const uint16_t* row, int64_t at, int64_t columns) {
    if (at + LANES <= columns) return widened(_mm256_loadu_si256((const __m256i*)(row + at)));
    return widened(_mm256_mask_loadu_epi16(_mm256_set1_epi16((short)0xff80), first(columns - at), row + at));
}

inline void write(uint16_t* row, int64_t at, int64_t columns, __m512 x) {
    if (at + LANES <= columns) return store_rounded(row + at, x);
    _mm256_mask_storeu_epi16(row + at, first(columns - at), rounded(x));
}

inline float number(uint16_t bfloat16) {
    uint32_t bits = (uint32_t)bfloat16 << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

float largest_of(const uint16_t* row, int64_t columns) {
    __m512 largest[2] = {all(-INFINITY), all(-INFINITY)};
    for (int64_t at = 0; at < columns; at += 2 * LANES)
        for (int i = 0; i < 2; i++) largest[i] = _mm512_max_ps(largest[i], read(row, at + i * LANES, columns));
    return _mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1]));
}

// p = e^(z - largest), and their sum.
float exponentials(const uint16_t* row, int64_t columns, float largest, float* p) {
    __m512 sums[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
    for (int64_t at = 0; at < columns; at += 4 * LANES)
        for (int i = 0; i < 4; i++) {
            __m512 e = exp_of(_mm512_sub_ps(read(row, at + i * LANES, columns), all(largest)));
            _mm512_storeu_ps(p + at + i * LANES, e);
            sums[i] = _mm512_add_ps(sums[i], e);
        }
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

// -log p(target) of one row, nats; its logits become weight (p - 1[target]).
float loss_of(uint16_t* row, int64_t columns, int64_t target, float weight, float* p) {
    float largest = largest_of(row, columns), mass = exponentials(row, columns, largest, p);
    float at_target = number(row[target]), scale = weight / mass;
    for (int64_t at = 0; at < columns; at += LANES)
        write(row, at, columns, _mm512_mul_ps(_mm512_loadu_ps(p + at), all(scale)));
    write(row + target, 0, 1, all(p[target] * scale - weight));
    return std::log(mass) + largest - at_target;
}

}  // namespace

// logits (rows, columns), targets (rows), `no_label` where there is none; losses (rows). Returns how many targets are
// no columns: their rows are left as they are.
extern "C" int64_t cross_entropy(uint16_t* logits, const int64_t* targets, float* losses, int64_t rows, int64_t columns,
                                 float weight, int64_t no_label, int threads) {
    int64_t outside = 0;
#pragma omp parallel num_threads(threads) reduction(+ : outside)
    {
        std::vector<float> p((columns + 4 * LANES - 1) / (4 * LANES) * (4 * LANES));
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            bool labelled = targets[i] != no_label;
            int64_t target = labelled ? targets[i] : 0;
            losses[i] = 0;
            if (target < 0 || target >= columns) {
                outside++;
                continue;
            }
            float loss = loss_of(logits + i * columns, columns, target, labelled ? weight : 0.0f, p.data());
            if (labelled) losses[i] = loss;
        }
    }
    return outside;
}
