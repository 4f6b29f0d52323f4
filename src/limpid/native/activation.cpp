// Activations of bfloat16, alone or as a gate, and their derivatives: formed in float32, rounded once.
#include "vectors.h"

namespace {

enum Kind { SILU, GELU, GELU_TANH };

struct Activated {
    __m512 value, slope;
};

constexpr float LOG2_E = 1.44269504f;

// 1 / (1 + 2^-x); 0 where that is too small for a normal number.
inline __m512 logistic_of_base_2(__m512 x) {
    __m512 below = exp2_of(_mm512_min_ps(all(128.0f), _mm512_sub_ps(all(0.0f), x)));
    __mmask16 normal = _mm512_cmp_ps_mask(below, all(8.0e37f), _CMP_NGE_UQ);
    return _mm512_maskz_mov_ps(normal, inverse_of(_mm512_add_ps(all(1.0f), below)));
}

// exp(x^2 / 2) P(X > x) for x >= 0, X normal: a polynomial in 1 / (1 + 0.38 x / sqrt(2)), within 1e-6 of it.
inline __m512 scaled_tail(__m512 x) {
    const float terms[] = {-6.259757376e-2f, 1.675915325e-1f, -3.429666300e-2f, 1.233924207e-1f,
                           9.052237651e-2f,  1.082394858e-1f, 1.071479145e-1f};
    __m512 t = inverse_of(_mm512_fmadd_ps(x, all(0.268700577f), all(1.0f))), sum = all(terms[0]);
    for (int i = 1; i < 7; i++) sum = _mm512_fmadd_ps(sum, t, all(terms[i]));
    return _mm512_mul_ps(sum, t);
}

// x P(X < x), X normal. Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
inline Activated gelu(__m512 x) {
    __m512 bell = exp2_of(_mm512_mul_ps(_mm512_mul_ps(x, x), all(-0.5f * LOG2_E)));
    __m512 beyond = _mm512_mul_ps(bell, scaled_tail(_mm512_min_ps(all(1e15f), _mm512_abs_ps(x))));
    __m512 share = _mm512_mask_sub_ps(beyond, _mm512_cmp_ps_mask(x, all(0.0f), _CMP_GT_OQ), all(1.0f), beyond);
    return {_mm512_mul_ps(x, share), _mm512_fmadd_ps(_mm512_mul_ps(x, all(0.398942280f)), bell, share)};
}

// x / (1 + e^(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Activated gelu_tanh(__m512 x) {
    __m512 square = _mm512_mul_ps(x, x), twice = all(1.59576912f);
    __m512 share = logistic_of_base_2(
        _mm512_mul_ps(_mm512_mul_ps(all(LOG2_E * 1.59576912f), x), _mm512_fmadd_ps(square, all(0.044715f), all(1.0f))));
    __m512 steep = _mm512_mul_ps(twice, _mm512_fmadd_ps(square, all(0.134145f), all(1.0f)));
    __m512 rest = _mm512_mul_ps(share, _mm512_sub_ps(all(1.0f), share));
    return {_mm512_mul_ps(x, share), _mm512_fmadd_ps(_mm512_mul_ps(x, rest), steep, share)};
}

inline Activated silu(__m512 x) {
    __m512 share = logistic_of_base_2(_mm512_mul_ps(x, all(LOG2_E))), rest = _mm512_sub_ps(all(1.0f), share);
    return {_mm512_mul_ps(x, share), _mm512_mul_ps(share, _mm512_fmadd_ps(x, rest, all(1.0f)))};
}

template <int kind>
inline Activated activated(__m512 x) {
    return kind == SILU ? silu(x) : kind == GELU ? gelu(x) : gelu_tanh(x);
}

template <class Body>
void on_all(int64_t count, int threads, Body body) {
    const int64_t whole = count / LANES;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < whole; i++) body(i * LANES);
}

template <int kind>
void forward(const uint16_t* x, const uint16_t* up, uint16_t* y, int64_t count, int threads) {
    if (up)
        on_all(count, threads, [=](int64_t i) {
            store_rounded(y + i, _mm512_mul_ps(activated<kind>(widened(x + i)).value, widened(up + i)));
        });
    else
        on_all(count, threads, [=](int64_t i) { store_rounded(y + i, activated<kind>(widened(x + i)).value); });
}

template <int kind>
void backward(const uint16_t* x, const uint16_t* up, const uint16_t* y_bar, uint16_t* y, uint16_t* x_bar,
              uint16_t* up_bar, int64_t count, int threads) {
    if (up)
        on_all(count, threads, [=](int64_t i) {
            Activated one = activated<kind>(widened(x + i));
            __m512 bar = widened(y_bar + i), other = widened(up + i);
            if (y) store_rounded(y + i, _mm512_mul_ps(one.value, other));
            store_rounded(up_bar + i, _mm512_mul_ps(bar, one.value));
            store_rounded(x_bar + i, _mm512_mul_ps(_mm512_mul_ps(bar, other), one.slope));
        });
    else
        on_all(count, threads, [=](int64_t i) {
            Activated one = activated<kind>(widened(x + i));
            __m512 bar = widened(y_bar + i);
            if (y) store_rounded(y + i, one.value);
            store_rounded(x_bar + i, _mm512_mul_ps(bar, one.slope));
        });
}

}  // namespace

extern "C" {

// f(x), or f(x) up where there is an up; `count` is a multiple of 16.
void activation_forward(int kind, const uint16_t* x, const uint16_t* up, uint16_t* y, int64_t count, int threads) {
    (kind == SILU ? forward<SILU> : kind == GELU ? forward<GELU> : forward<GELU_TANH>)(x, up, y, count, threads);
}

// With a y, the result is formed again beside; x_bar may lie where y_bar does.
void activation_backward(int kind, const uint16_t* x, const uint16_t* up, const uint16_t* y_bar, uint16_t* y,
                         uint16_t* x_bar, uint16_t* up_bar, int64_t count, int threads) {
    (kind == SILU   ? backward<SILU>
     : kind == GELU ? backward<GELU>
                    : backward<GELU_TANH>)(x, up, y_bar, y, x_bar, up_bar, count, threads);
}
}
