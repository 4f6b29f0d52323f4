// The norm of all gradients, and AdamW of all parameters, in one call each; in parts of a fixed size, so that bits do
// not depend on threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t PART = 1 << 13;
constexpr int64_t AHEAD = 1 << 11;  // numbers that are asked for before they are read: a processor itself looks less far

struct Part {
    int64_t array, start, stop;
};

std::vector<Part> parts_of(int64_t count, const int64_t* sizes) {
    std::vector<Part> parts;
    for (int64_t i = 0; i < count; i++)
        for (int64_t start = 0; start < sizes[i]; start += PART)
            parts.push_back({i, start, std::min(start + PART, sizes[i])});
    return parts;
}

double squares_of(const float* x, int64_t count) {
    __m512 sums[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
    for (int64_t at = 0; at < count; at += 4 * LANES)
        for (int i = 0; i < 4; i++) {
            _mm_prefetch((const char*)(x + at + i * LANES + AHEAD), _MM_HINT_T0);
            __m512 g = _mm512_maskz_loadu_ps(first(count - at - i * LANES), x + at + i * LANES);
            sums[i] = _mm512_fmadd_ps(g, g, sums[i]);
        }
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

}  // namespace

extern "C" double sum_of_squares(int64_t count, const float* const* arrays, const int64_t* sizes, int threads) {
    std::vector<Part> parts = parts_of(count, sizes);
    std::vector<double> sums(parts.size());
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < parts.size(); i++) {
        const Part& part = parts[i];
        sums[i] = squares_of(arrays[part.array] + part.start, part.stop - part.start);
    }
    double total = 0;
    for (double sum : sums) total += sum;
    return total;
}

struct Arrays {
    float* const* parameters;
    const float* const* gradients;
    float *const *first_moments, *const *second_moments, *const *updates;
};

struct Rule {
    double rate, beta1, beta2, eps, weight_decay, factor;  // by which gradients are multiplied first
};

// Sixteen entries of a parameter, or the first `some` of them. Every operation is rounded as PyTorch's fused AdamW
// rounds it.
struct Moved {
    __m512 factor, kept, near1, near2, beta2, eps, step, root;
    bool decays;

    Moved(const Rule& r, double number)
        : factor(all((float)r.factor)),
          kept(all((float)(1 - r.rate * r.weight_decay))),
          near1(all((float)(1 - r.beta1))),
          near2(all((float)(1 - r.beta2))),
          beta2(all((float)r.beta2)),
          eps(all((float)r.eps)),
          step(all((float)-(r.rate / (1 - std::pow(r.beta1, number))))),
          root(all((float)std::sqrt(1 - std::pow(r.beta2, number)))),
          decays(r.weight_decay != 0) {}

    inline __attribute__((always_inline)) void operator()(float* p, const float* g, float* m, float* v,
                                                          __mmask16 some) const {
        __m512 gradient = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, g), factor), theta = _mm512_maskz_loadu_ps(some, p);
        __m512 mean = _mm512_maskz_loadu_ps(some, m), square = _mm512_maskz_loadu_ps(some, v);
        if (decays) theta = _mm512_mul_ps(theta, kept);
        mean = _mm512_fmadd_ps(near1, _mm512_sub_ps(gradient, mean), mean);
        square = _mm512_fmadd_ps(_mm512_mul_ps(near2, gradient), gradient, _mm512_mul_ps(square, beta2));
        __m512 below = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(square), root), eps);
        theta = _mm512_add_ps(theta, _mm512_div_ps(_mm512_mul_ps(step, mean), below));
        _mm512_mask_storeu_ps(m, some, mean);
        _mm512_mask_storeu_ps(v, some, square);
        _mm512_mask_storeu_ps(p, some, theta);
    }
};

// `updates` counts those of each parameter.
extern "C" void adamw(int64_t count, const Arrays* arrays, const int64_t* sizes, const Rule* rule, int threads) {
    for (int64_t i = 0; i < count; i++) arrays->updates[i][0] += 1;
    std::vector<Part> parts = parts_of(count, sizes);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < parts.size(); i++) {
        const Part part = parts[i];
        float* p = arrays->parameters[part.array];
        const float* g = arrays->gradients[part.array];
        float *m = arrays->first_moments[part.array], *v = arrays->second_moments[part.array];
        const Moved moved(*rule, arrays->updates[part.array][0]);
        int64_t at = part.start;
        for (; at + LANES <= part.stop; at += LANES) moved(p + at, g + at, m + at, v + at, (__mmask16)0xffff);
        if (at < part.stop) moved(p + at, g + at, m + at, v + at, first(part.stop - at));
    }
}
