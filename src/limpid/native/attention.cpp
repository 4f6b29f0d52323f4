// Causal attention of bfloat16 queries, keys and values, forward and backward, in tiles that stay in the caches.
//
// A tile holds the scores of 64 queries, one to a lane, with all keys that they see, one to a row: the softmax of a
// query runs down its lane. Products add pairs of bfloat16 into float32 (vdpbf16ps): the left factor is read as pairs
// that lie side by side, the right one is packed so that pairs along the sum lie in one lane.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace {

using Pair = uint32_t;  // two bfloat16

constexpr int LANES = 16, QUERIES = 64, COLUMNS = QUERIES / LANES, ROWS = 6;

struct Shape {
    int64_t batch, heads, kv_heads, positions, d_head, window;  // window 0: all that came before
};

struct Strides {
    int64_t batch, head, position;  // in numbers; those of one position lie side by side
};

inline int64_t even(int64_t n) { return (n + 1) & ~int64_t(1); }
inline int64_t padded(int64_t n) { return (n + QUERIES - 1) / QUERIES * QUERIES; }

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
void pack_along_features(const uint16_t* x, int64_t stride, int64_t positions, int64_t d, Pair* out, int64_t width) {
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
void pack_along_positions(const uint16_t* x, int64_t stride, int64_t positions, int64_t rows, int64_t d, Pair* out) {
    for (int64_t t = 0; t < rows; t += 2)
        for (int64_t j = 0; j < d; j += LANES) {
            auto half = [&](int64_t at) {
                return at < positions ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(x + at * stride + j)))
                                      : _mm512_setzero_si512();
            };
            _mm512_storeu_si512(out + t / 2 * d + j, _mm512_or_si512(half(t), _mm512_slli_epi32(half(t + 1), 16)));
        }
}

inline __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

inline __m512i paired(__m512 first, __m512 second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(rounded(first)),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(second)), 16));
}

// 2^x for x <= 0, within 2 units of the last place: 2^n from the exponent, 2^f by a polynomial on [-1/2, 1/2].
inline __m512 exp2_of(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);  // in this order what is no number stays none
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(x, n);
    __m512 y = _mm512_set1_ps(1.54035304e-4f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.33335581e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.61812911e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.55041087e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.40226507e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.93147181e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

struct Span {
    int64_t first, last;  // keys that some query of a tile sees; `first` is even
};

inline Span seen(const Shape& s, int64_t q0) {
    int64_t first = s.window ? std::max<int64_t>(0, q0 - s.window + 1) : 0;
    return {first & ~int64_t(1), std::min(q0 + QUERIES, s.positions)};
}

// Columns of 16 queries before which all queries come before a key.
inline int hidden_columns(int64_t key, int64_t q0) { return key <= q0 ? 0 : (int)((key - q0) / LANES); }

// weights[key - first][query]: softmax over the keys that a query sees, 0 for those that it does not, in float32.
void form_weights(const Shape& s, Span span, const uint16_t* key, int64_t stride, const Pair* queries, int64_t width,
                  int64_t q0, float scale, float* weights) {
    const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 most[COLUMNS], sum[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) most[j] = least, sum[j] = _mm512_setzero_ps();
    for (int64_t k = span.first; k < span.last; k += ROWS) {
        int count = (int)std::min<int64_t>(ROWS, span.last - k), from = hidden_columns(k, q0);
        product(count, COLUMNS - from, (const Pair*)(key + k * stride), stride / 2, 1, queries + q0 + LANES * from,
                width, s.d_head / 2, weights + (k - span.first) * QUERIES + LANES * from, QUERIES, false);
        for (int i = 0; i < count; i++) {
            float* row = weights + (k - span.first + i) * QUERIES;
            for (int j = 0; j < COLUMNS; j++) {
                int64_t query = q0 + LANES * j, at = k + i;  // of the first lane
                bool all = at <= query && (!s.window || query + LANES - 1 < at + s.window);
                __m512 score = j < from ? least : _mm512_loadu_ps(row + LANES * j);
                if (!all) {
                    int64_t hidden = std::clamp<int64_t>(at - query, 0, LANES),
                            beyond = s.window ? std::clamp<int64_t>(at + s.window - query, 0, LANES) : LANES;
                    __mmask16 shown = (__mmask16)(((1u << beyond) - 1) & ~((1u << hidden) - 1));
                    score = _mm512_mask_mov_ps(least, shown, score);
                    _mm512_storeu_ps(row + LANES * j, score);
                }
                most[j] = _mm512_max_ps(most[j], score);
            }
        }
    }
    const __m512 times = _mm512_set1_ps(scale * 1.44269504f);
    __m512 shift[COLUMNS];
    for (int j = 0; j < COLUMNS; j++)  // a lane beyond the last query sees nothing
        shift[j] = _mm512_mul_ps(
            _mm512_mask_mov_ps(most[j], _mm512_cmp_ps_mask(most[j], least, _CMP_EQ_OQ), _mm512_setzero_ps()), times);
    for (int64_t k = 0; k < span.last - span.first; k++)
        for (int j = 0; j < COLUMNS; j++) {
            float* at = weights + k * QUERIES + LANES * j;
            __m512 score = _mm512_loadu_ps(at);
            __mmask16 shown = _mm512_cmp_ps_mask(score, least, _CMP_NEQ_UQ);
            __m512 e = _mm512_maskz_mov_ps(shown, exp2_of(_mm512_fmsub_ps(score, times, shift[j])));
            _mm512_storeu_ps(at, e);
            sum[j] = _mm512_add_ps(sum[j], e);
        }
    __m512 over[COLUMNS];
    for (int j = 0; j < COLUMNS; j++)
        over[j] = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_max_ps(_mm512_set1_ps(1e-30f), sum[j]));
    for (int64_t k = 0; k < span.last - span.first; k++)
        for (int j = 0; j < COLUMNS; j++) {
            float* at = weights + k * QUERIES + LANES * j;
            _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), over[j]));
        }
    if ((span.last - span.first) % 2)
        for (int j = 0; j < COLUMNS; j++)
            _mm512_storeu_ps(weights + (span.last - span.first) * QUERIES + LANES * j, _mm512_setzero_ps());
}

// Rows of float32 times a factor, as bfloat16.
inline void store_rows(const float* x, int64_t count, int64_t d, float factor, uint16_t* out, int64_t stride) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < d; j += LANES)
            _mm256_storeu_si256((__m256i*)(out + i * stride + j),
                                rounded(_mm512_mul_ps(_mm512_loadu_ps(x + i * d + j), _mm512_set1_ps(factor))));
}

struct Room {
    char* at;
    char* start;
    explicit Room(size_t bytes) { at = start = (char*)std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
    ~Room() { std::free(start); }
    template <class T>
    T* take(size_t count) {
        T* here = (T*)at;
        at += (count * sizeof(T) + 63) / 64 * 64;
        return here;
    }
};

}  // namespace

extern "C" {

void attention_forward(const Shape* shape, const uint16_t* query, const Strides* qs, const uint16_t* key,
                       const Strides* ks, const uint16_t* value, const Strides* vs, uint16_t* mixed, const Strides* ms,
                       float scale, int threads) {
    const Shape s = *shape;
    const int64_t d = s.d_head, width = padded(s.positions), keys = even(s.positions) + 2, group = s.heads / s.kv_heads;
#pragma omp parallel num_threads(threads)
    {
        Room room(4 * (keys / 2 * d + d / 2 * width + keys * QUERIES + keys / 2 * QUERIES + QUERIES * d) + 1024);
        Pair *values = room.take<Pair>(keys / 2 * d), *queries = room.take<Pair>(d / 2 * width),
             *pairs = room.take<Pair>(keys / 2 * QUERIES);
        float *weights = room.take<float>(keys * QUERIES), *sums = room.take<float>(QUERIES * d);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t g = 0; g < s.kv_heads; g++) {
                const uint16_t *k = key + b * ks->batch + g * ks->head, *v = value + b * vs->batch + g * vs->head;
                pack_along_positions(v, vs->position, s.positions, even(s.positions), d, values);
                for (int64_t h = g * group; h < (g + 1) * group; h++) {
                    pack_along_features(query + b * qs->batch + h * qs->head, qs->position, s.positions, d, queries,
                                        width);
                    for (int64_t q0 = 0; q0 < s.positions; q0 += QUERIES) {
                        Span span = seen(s, q0);
                        form_weights(s, span, k, ks->position, queries, width, q0, scale, weights);
                        for (int64_t i = 0; i < even(span.last - span.first); i += 2)
                            for (int j = 0; j < QUERIES; j += LANES)
                                _mm512_storeu_si512(pairs + i / 2 * QUERIES + j,
                                                    paired(_mm512_loadu_ps(weights + i * QUERIES + j),
                                                           _mm512_loadu_ps(weights + (i + 1) * QUERIES + j)));
                        int64_t rows = std::min<int64_t>(QUERIES, s.positions - q0);
                        for (int64_t r = 0; r < rows; r += ROWS) {
                            int count = (int)std::min<int64_t>(ROWS, rows - r);
                            int64_t last = std::min(span.last, q0 + r + count);
                            product(count, (int)(d / LANES), pairs + r, 1, QUERIES, values + span.first / 2 * d, d,
                                    even(last - span.first) / 2, sums + r * d, d, false);
                        }
                        store_rows(sums, rows, d, 1.0f, mixed + b * ms->batch + h * ms->head + q0 * ms->position,
                                   ms->position);
                    }
                }
            }
    }
}

void attention_backward(const Shape* shape, const uint16_t* query, const Strides* qs, const uint16_t* key,
                        const Strides* ks, const uint16_t* value, const Strides* vs, const uint16_t* mixed_bar,
                        const Strides* ms, uint16_t* query_bar, const Strides* qbs, uint16_t* key_bar,
                        const Strides* kbs, uint16_t* value_bar, const Strides* vbs, float scale, int threads) {
    const Shape s = *shape;
    const int64_t d = s.d_head, width = padded(s.positions), keys = even(s.positions) + 2, group = s.heads / s.kv_heads;
#pragma omp parallel num_threads(threads)
    {
        Room room(4 * (keys / 2 * d + 2 * (d / 2 * width) + 2 * (width / 2 * d) + 2 * keys * QUERIES +
                       3 * (keys / 2 * QUERIES) + QUERIES * d + 2 * keys * d) +
                  4096);
        Pair *keys_packed = room.take<Pair>(keys / 2 * d), *queries = room.take<Pair>(d / 2 * width),
             *bars = room.take<Pair>(d / 2 * width);
        Pair *query_rows = room.take<Pair>(width / 2 * d), *bar_rows = room.take<Pair>(width / 2 * d);
        float *weights = room.take<float>(keys * QUERIES), *weights_bar = room.take<float>(keys * QUERIES);
        uint16_t *of_weights = room.take<uint16_t>(keys * QUERIES), *of_scores = room.take<uint16_t>(keys * QUERIES);
        Pair* pairs = room.take<Pair>(keys / 2 * QUERIES);
        float *sums = room.take<float>(QUERIES * d), *key_sums = room.take<float>(keys * d),
              *value_sums = room.take<float>(keys * d);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t g = 0; g < s.kv_heads; g++) {
                const uint16_t *k = key + b * ks->batch + g * ks->head, *v = value + b * vs->batch + g * vs->head;
                pack_along_positions(k, ks->position, s.positions, even(s.positions), d, keys_packed);
                std::fill(key_sums, key_sums + keys * d, 0.0f);
                std::fill(value_sums, value_sums + keys * d, 0.0f);
                for (int64_t h = g * group; h < (g + 1) * group; h++) {
                    const uint16_t *q = query + b * qs->batch + h * qs->head,
                                   *bar = mixed_bar + b * ms->batch + h * ms->head;
                    pack_along_features(q, qs->position, s.positions, d, queries, width);
                    pack_along_features(bar, ms->position, s.positions, d, bars, width);
                    pack_along_positions(q, qs->position, s.positions, width, d, query_rows);
                    pack_along_positions(bar, ms->position, s.positions, width, d, bar_rows);
                    for (int64_t q0 = 0; q0 < s.positions; q0 += QUERIES) {
                        Span span = seen(s, q0);
                        int64_t count = span.last - span.first;
                        form_weights(s, span, k, ks->position, queries, width, q0, scale, weights);
                        __m512 along[COLUMNS];
                        for (int j = 0; j < COLUMNS; j++) along[j] = _mm512_setzero_ps();
                        for (int64_t i = 0; i < count; i += ROWS) {
                            int some = (int)std::min<int64_t>(ROWS, count - i),
                                from = hidden_columns(span.first + i, q0);
                            product(some, COLUMNS - from, (const Pair*)(v + (span.first + i) * vs->position),
                                    vs->position / 2, 1, bars + q0 + LANES * from, width, d / 2,
                                    weights_bar + i * QUERIES + LANES * from, QUERIES, false);
                            for (int r = 0; r < some; r++)
                                for (int j = 0; j < COLUMNS; j++) {
                                    int64_t at = (i + r) * QUERIES + LANES * j;
                                    __m512 w = _mm512_loadu_ps(weights + at);
                                    if (j >= from)
                                        along[j] = _mm512_fmadd_ps(w, _mm512_loadu_ps(weights_bar + at), along[j]);
                                    else
                                        _mm512_storeu_ps(weights_bar + at, _mm512_setzero_ps());
                                    _mm256_storeu_si256((__m256i*)(of_weights + at), rounded(w));
                                }
                        }
                        for (int64_t i = 0; i < even(count); i += 2)
                            for (int j = 0; j < COLUMNS; j++) {
                                int64_t at = i * QUERIES + LANES * j, next = at + QUERIES;
                                __m512 first =
                                           _mm512_mul_ps(_mm512_loadu_ps(weights + at),
                                                         _mm512_sub_ps(_mm512_loadu_ps(weights_bar + at), along[j])),
                                       second = _mm512_setzero_ps();
                                if (i + 1 < count)
                                    second =
                                        _mm512_mul_ps(_mm512_loadu_ps(weights + next),
                                                      _mm512_sub_ps(_mm512_loadu_ps(weights_bar + next), along[j]));
                                __m256i one = rounded(first), other = rounded(second);
                                _mm256_storeu_si256((__m256i*)(of_scores + at), one);
                                _mm256_storeu_si256((__m256i*)(of_scores + next), other);
                                _mm512_storeu_si512(
                                    pairs + i / 2 * QUERIES + LANES * j,
                                    _mm512_or_si512(_mm512_cvtepu16_epi32(one),
                                                    _mm512_slli_epi32(_mm512_cvtepu16_epi32(other), 16)));
                            }
                        for (int64_t i = 0; i < count; i += ROWS) {
                            int some = (int)std::min<int64_t>(ROWS, count - i),
                                from = hidden_columns(span.first + i, q0) * LANES / 2;
                            int64_t to = (span.first + i) * d;
                            product(some, (int)(d / LANES), (const Pair*)(of_weights + i * QUERIES) + from, QUERIES / 2,
                                    1, bar_rows + (q0 / 2 + from) * d, d, QUERIES / 2 - from, value_sums + to, d, true);
                            product(some, (int)(d / LANES), (const Pair*)(of_scores + i * QUERIES) + from, QUERIES / 2,
                                    1, query_rows + (q0 / 2 + from) * d, d, QUERIES / 2 - from, key_sums + to, d, true);
                        }
                        int64_t rows = std::min<int64_t>(QUERIES, s.positions - q0);
                        for (int64_t r = 0; r < rows; r += ROWS) {
                            int some = (int)std::min<int64_t>(ROWS, rows - r);
                            int64_t last = std::min(span.last, q0 + r + some);
                            product(some, (int)(d / LANES), pairs + r, 1, QUERIES, keys_packed + span.first / 2 * d, d,
                                    even(last - span.first) / 2, sums + r * d, d, false);
                        }
                        store_rows(sums, rows, d, scale,
                                   query_bar + b * qbs->batch + h * qbs->head + q0 * qbs->position, qbs->position);
                    }
                }
                store_rows(key_sums, s.positions, d, scale, key_bar + b * kbs->batch + g * kbs->head, kbs->position);
                store_rows(value_sums, s.positions, d, 1.0f, value_bar + b * vbs->batch + g * vbs->head, vbs->position);
            }
    }
}
}
