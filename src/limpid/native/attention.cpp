// Causal attention of bfloat16 queries, keys and values, forward and backward, in tiles that stay in the caches.
//
// A tile holds the scores of 64 queries, one to a lane, with all keys that they see, one to a row: the softmax of a
// query runs down its lane. The left factor of a product is read as pairs that lie side by side, the right one is
// packed so that pairs along the sum lie in one lane. Backward, weights are formed again in the same way, to the same
// bits.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "products.h"

namespace {

constexpr int QUERIES = 64, COLUMNS = QUERIES / LANES;
constexpr float LOG2_E = 1.44269504f;

struct Shape {
    int64_t batch, heads, kv_heads, positions, d_head, window;  // window 0: all that came before
};

struct Strides {
    int64_t batch, head, position;  // in numbers; those of one position lie side by side
};

template <class Number>
struct Heads {  // an array (batch, head, position, d_head)
    Number* start;
    const Strides* by;

    Number* of(int64_t batch, int64_t head) const { return start + batch * by->batch + head * by->head; }
    int64_t step() const { return by->position; }
};

using Read = Heads<const uint16_t>;
using Written = Heads<uint16_t>;

inline int64_t even(int64_t n) { return (n + 1) & ~int64_t(1); }
inline int64_t whole_tiles(int64_t n) { return (n + QUERIES - 1) / QUERIES * QUERIES; }

// Room of one thread, handed out in pieces.
struct Room {
    char* start;
    char* next;
    explicit Room(int64_t bytes) { start = next = (char*)std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
    ~Room() { std::free(start); }
    Room(const Room&) = delete;

    template <class T>
    T* take(int64_t count) {
        T* here = (T*)next;
        next += (count * sizeof(T) + 63) / 64 * 64;
        return here;
    }
};

// 64 queries from q0 on, and the keys that some of them see; `first` is even.
struct Tile {
    int64_t q0, queries, first, last;

    Tile(const Shape& s, int64_t q0) : q0(q0) {
        queries = std::min<int64_t>(QUERIES, s.positions - q0);
        first = (s.window ? std::max<int64_t>(0, q0 - s.window + 1) : 0) & ~int64_t(1);
        last = std::min(q0 + QUERIES, s.positions);
    }
    int64_t keys() const { return last - first; }
    // Columns of 16 queries that all come before a key.
    int hidden_columns(int64_t key) const { return key <= q0 ? 0 : (int)((key - q0) / LANES); }
};

struct Columns {
    __m512 of[COLUMNS];
};

inline float* at(float* tile, int64_t row, int column) { return tile + row * QUERIES + LANES * column; }

// tile[key][query] = keys · queries over the features, but for columns that are hidden.
void form_products(const Tile& t, int64_t row, int count, const uint16_t* keys, int64_t stride, const Pair* queries,
                   int64_t width, int64_t d, float* tile) {
    const int hidden = t.hidden_columns(t.first + row);
    product(count, COLUMNS - hidden, (const Pair*)(keys + (t.first + row) * stride), stride / 2, 1,
            queries + t.q0 + LANES * hidden, width, d / 2, at(tile, row, hidden), QUERIES, false);
}

// -inf in the place of scores of keys that a query does not see.
inline __m512 shown(const Shape& s, int64_t key, int64_t query, __m512 score) {
    const int64_t beyond = s.window ? key + s.window - query : LANES;  // the first lane that sees no more of it
    if (key <= query && beyond >= LANES) return score;
    auto lanes_below = [](int64_t n) { return (1u << std::clamp<int64_t>(n, 0, LANES)) - 1; };
    const __mmask16 seen = (__mmask16)(lanes_below(beyond) & ~lanes_below(key - query));
    return _mm512_mask_mov_ps(all(-std::numeric_limits<float>::infinity()), seen, score);
}

// tile[key][query] = exp(score - largest score of the query), 0 where a key is hidden; returns 1 / their sums.
Columns form_exponentials(const Shape& s, const Tile& t, const uint16_t* keys, int64_t stride, const Pair* queries,
                          int64_t width, float scale, float* tile) {
    const __m512 least = all(-std::numeric_limits<float>::infinity());
    Columns most, sum;
    for (int j = 0; j < COLUMNS; j++) most.of[j] = least, sum.of[j] = all(0.0f);
    for (int64_t row = 0; row < t.keys(); row += ROWS) {
        const int count = (int)std::min<int64_t>(ROWS, t.keys() - row);
        form_products(t, row, count, keys, stride, queries, width, s.d_head, tile);
        const int hidden = t.hidden_columns(t.first + row);
        for (int64_t i = row; i < row + count; i++)
            for (int j = 0; j < COLUMNS; j++) {  // all of them, so that sums stay in registers
                if (j < hidden) continue;
                __m512 score = shown(s, t.first + i, t.q0 + LANES * j, _mm512_loadu_ps(at(tile, i, j)));
                _mm512_storeu_ps(at(tile, i, j), score);
                most.of[j] = _mm512_max_ps(most.of[j], score);
            }
    }
    const __m512 times = all(scale * LOG2_E);
    for (int j = 0; j < COLUMNS; j++) {  // a lane beyond the last query sees nothing
        __mmask16 none = _mm512_cmp_ps_mask(most.of[j], least, _CMP_EQ_OQ);
        most.of[j] = _mm512_mul_ps(_mm512_mask_mov_ps(most.of[j], none, all(0.0f)), times);
    }
    for (int64_t i = 0; i < t.keys(); i++) {
        const int hidden = t.hidden_columns(t.first + i);
        for (int j = 0; j < COLUMNS; j++) {
            if (j < hidden) {
                _mm512_storeu_ps(at(tile, i, j), all(0.0f));
                continue;
            }
            __m512 score = _mm512_loadu_ps(at(tile, i, j)), e = exp2_of(_mm512_fmsub_ps(score, times, most.of[j]));
            e = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(score, least, _CMP_NEQ_UQ), e);
            _mm512_storeu_ps(at(tile, i, j), e);
            sum.of[j] = _mm512_add_ps(sum.of[j], e);
        }
    }
    if (t.keys() % 2)
        for (int j = 0; j < COLUMNS; j++) _mm512_storeu_ps(at(tile, t.keys(), j), all(0.0f));
    for (int j = 0; j < COLUMNS; j++) sum.of[j] = _mm512_div_ps(all(1.0f), _mm512_max_ps(all(1e-30f), sum.of[j]));
    return sum;
}

// rows[query] = Σ pairs[key][query] packed[key] over the keys up to each query, of d features.
void sum_over_keys(const Tile& t, const Pair* pairs, const Pair* packed, int64_t d, float* rows) {
    for (int64_t r = 0; r < t.queries; r += ROWS) {
        const int count = (int)std::min<int64_t>(ROWS, t.queries - r);
        const int64_t keys = even(std::min(t.last, t.q0 + r + count) - t.first);
        product(count, (int)(d / LANES), pairs + r, 1, QUERIES, packed + t.first / 2 * d, d, keys / 2, rows + r * d, d,
                false);
    }
}

// sums[key] += Σ tile[key][query] packed[query] over the queries that come after each key.
void add_over_queries(const Tile& t, const uint16_t* tile, const Pair* packed, int64_t d, float* sums) {
    for (int64_t row = 0; row < t.keys(); row += ROWS) {
        const int count = (int)std::min<int64_t>(ROWS, t.keys() - row);
        const int64_t before = t.hidden_columns(t.first + row) * LANES / 2;  // pairs of queries that see none of them
        product(count, (int)(d / LANES), (const Pair*)(tile + row * QUERIES) + before, QUERIES / 2, 1,
                packed + (t.q0 / 2 + before) * d, d, QUERIES / 2 - before, sums + (t.first + row) * d, d, true);
    }
}

// Rows of float32 times a factor, as bfloat16.
void store_rows(const float* x, int64_t count, int64_t d, float factor, uint16_t* out, int64_t stride) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < d; j += LANES)
            store_rounded(out + i * stride + j, _mm512_mul_ps(_mm512_loadu_ps(x + i * d + j), all(factor)));
}

struct Sizes {
    int64_t d, width, keys, group;
    explicit Sizes(const Shape& s)
        : d(s.d_head), width(whole_tiles(s.positions)), keys(even(s.positions) + 2), group(s.heads / s.kv_heads) {}
};

struct Forward {
    const Shape& s;
    const Sizes z;
    const Read query, key, value;
    const Written mixed;
    const float scale;
    Room room;
    Pair *values, *queries, *pairs;
    float *tile, *rows;

    Forward(const Shape& s, Read query, Read key, Read value, Written mixed, float scale)
        : s(s),
          z(s),
          query(query),
          key(key),
          value(value),
          mixed(mixed),
          scale(scale),
          room(4 * (z.keys / 2 * (z.d + QUERIES) + z.d / 2 * z.width + z.keys * QUERIES + QUERIES * z.d) + 1024) {
        values = room.take<Pair>(z.keys / 2 * z.d), queries = room.take<Pair>(z.d / 2 * z.width);
        pairs = room.take<Pair>(z.keys / 2 * QUERIES);
        tile = room.take<float>(z.keys * QUERIES), rows = room.take<float>(QUERIES * z.d);
    }

    // All heads that read one head of keys.
    void group(int64_t b, int64_t g) {
        pack_along_positions(value.of(b, g), value.step(), s.positions, even(s.positions), z.d, values);
        for (int64_t h = g * z.group; h < (g + 1) * z.group; h++) {
            pack_along_features(query.of(b, h), query.step(), s.positions, z.d, queries, z.width);
            for (int64_t q0 = 0; q0 < s.positions; q0 += QUERIES) {
                const Tile t(s, q0);
                pair_weights(t, form_exponentials(s, t, key.of(b, g), key.step(), queries, z.width, scale, tile));
                sum_over_keys(t, pairs, values, z.d, rows);
                store_rows(rows, t.queries, z.d, 1.0f, mixed.of(b, h) + q0 * mixed.step(), mixed.step());
            }
        }
    }

    void pair_weights(const Tile& t, const Columns& over) {
        for (int64_t i = 0; i < t.keys(); i += 2)
            for (int j = 0; j < COLUMNS; j++) {
                __m512 one = _mm512_mul_ps(_mm512_loadu_ps(at(tile, i, j)), over.of[j]);
                __m512 other = _mm512_mul_ps(_mm512_loadu_ps(at(tile, i + 1, j)), over.of[j]);
                _mm512_storeu_si512(pairs + i / 2 * QUERIES + LANES * j, paired(rounded(one), rounded(other)));
            }
    }
};

struct Backward {
    const Shape& s;
    const Sizes z;
    const Read query, key, value, mixed_bar;
    const Written query_bar, key_bar, value_bar;
    const float scale;
    Room room;
    Pair *keys, *queries, *bars, *query_rows, *bar_rows, *pairs;
    uint16_t *rounded_weights, *rounded_scores_bar;
    float *weights, *weights_bar, *rows, *key_sums, *value_sums;

    Backward(const Shape& s, Read query, Read key, Read value, Read mixed_bar, Written query_bar, Written key_bar,
             Written value_bar, float scale)
        : s(s),
          z(s),
          query(query),
          key(key),
          value(value),
          mixed_bar(mixed_bar),
          query_bar(query_bar),
          key_bar(key_bar),
          value_bar(value_bar),
          scale(scale),
          room(
              4 * (z.keys / 2 * z.d + 2 * z.width * z.d + z.keys / 2 * QUERIES * 7 + QUERIES * z.d + 2 * z.keys * z.d) +
              4096) {
        keys = room.take<Pair>(z.keys / 2 * z.d), pairs = room.take<Pair>(z.keys / 2 * QUERIES);
        queries = room.take<Pair>(z.d / 2 * z.width), bars = room.take<Pair>(z.d / 2 * z.width);
        query_rows = room.take<Pair>(z.width / 2 * z.d), bar_rows = room.take<Pair>(z.width / 2 * z.d);
        weights = room.take<float>(z.keys * QUERIES), weights_bar = room.take<float>(z.keys * QUERIES);
        rounded_weights = room.take<uint16_t>(z.keys * QUERIES),
        rounded_scores_bar = room.take<uint16_t>(z.keys * QUERIES);
        rows = room.take<float>(QUERIES * z.d);
        key_sums = room.take<float>(z.keys * z.d), value_sums = room.take<float>(z.keys * z.d);
    }

    // All heads that read one head of keys: their gradients add up.
    void group(int64_t b, int64_t g) {
        pack_along_positions(key.of(b, g), key.step(), s.positions, even(s.positions), z.d, keys);
        std::fill(key_sums, key_sums + z.keys * z.d, 0.0f);
        std::fill(value_sums, value_sums + z.keys * z.d, 0.0f);
        for (int64_t h = g * z.group; h < (g + 1) * z.group; h++) {
            pack_along_features(query.of(b, h), query.step(), s.positions, z.d, queries, z.width);
            pack_along_features(mixed_bar.of(b, h), mixed_bar.step(), s.positions, z.d, bars, z.width);
            pack_along_positions(query.of(b, h), query.step(), s.positions, z.width, z.d, query_rows);
            pack_along_positions(mixed_bar.of(b, h), mixed_bar.step(), s.positions, z.width, z.d, bar_rows);
            for (int64_t q0 = 0; q0 < s.positions; q0 += QUERIES) {
                const Tile t(s, q0);
                const Columns over =
                    form_exponentials(s, t, key.of(b, g), key.step(), queries, z.width, scale, weights);
                form_scores_bar(t, form_weights_bar(t, over, value.of(b, g), value.step()));
                add_over_queries(t, rounded_weights, bar_rows, z.d, value_sums);
                add_over_queries(t, rounded_scores_bar, query_rows, z.d, key_sums);
                sum_over_keys(t, pairs, keys, z.d, rows);
                store_rows(rows, t.queries, z.d, scale, query_bar.of(b, h) + q0 * query_bar.step(), query_bar.step());
            }
        }
        store_rows(key_sums, s.positions, z.d, scale, key_bar.of(b, g), key_bar.step());
        store_rows(value_sums, s.positions, z.d, 1.0f, value_bar.of(b, g), value_bar.step());
    }

    // Weights, and their gradient mixed_bar · value; returns Σ weight weight_bar of each query.
    Columns form_weights_bar(const Tile& t, const Columns& over, const uint16_t* values, int64_t stride) {
        Columns along;
        for (int j = 0; j < COLUMNS; j++) along.of[j] = all(0.0f);
        for (int64_t row = 0; row < t.keys(); row += ROWS) {
            const int count = (int)std::min<int64_t>(ROWS, t.keys() - row), hidden = t.hidden_columns(t.first + row);
            form_products(t, row, count, values, stride, bars, z.width, z.d, weights_bar);
            for (int64_t i = row; i < row + count; i++) {
                for (int j = 0; j < COLUMNS; j++) {
                    if (j < hidden) _mm512_storeu_ps(at(weights_bar, i, j), all(0.0f));
                    __m512 weight = _mm512_mul_ps(_mm512_loadu_ps(at(weights, i, j)), over.of[j]);
                    _mm512_storeu_ps(at(weights, i, j), weight);
                    store_rounded(rounded_weights + i * QUERIES + LANES * j, weight);
                    along.of[j] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(at(weights_bar, i, j)), along.of[j]);
                }
            }
        }
        return along;
    }

    // weight (weight_bar - Σ weight weight_bar), rounded, as rows of keys and as pairs of keys.
    void form_scores_bar(const Tile& t, const Columns& along) {
        auto of = [&](int64_t i, int j) {
            __m512 bar = _mm512_sub_ps(_mm512_loadu_ps(at(weights_bar, i, j)), along.of[j]);
            return rounded(_mm512_mul_ps(_mm512_loadu_ps(at(weights, i, j)), bar));
        };
        for (int64_t i = 0; i < t.keys(); i += 2)
            for (int j = 0; j < COLUMNS; j++) {
                __m256i one = of(i, j), other = i + 1 < t.keys() ? of(i + 1, j) : _mm256_setzero_si256();
                uint16_t* place = rounded_scores_bar + i * QUERIES + LANES * j;
                _mm256_storeu_si256((__m256i*)place, one);
                _mm256_storeu_si256((__m256i*)(place + QUERIES), other);
                _mm512_storeu_si512(pairs + i / 2 * QUERIES + LANES * j, paired(one, other));
            }
    }
};

// Each head of keys by some thread; what a thread does depends on neither number nor order of the threads.
template <class Make>
void on_groups(const Shape& s, int threads, Make make) {
#pragma omp parallel num_threads(threads)
    {
        auto pass = make();
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t g = 0; g < s.kv_heads; g++) pass.group(b, g);
    }
}

}  // namespace

extern "C" {

void attention_forward(const Shape* shape, const uint16_t* query, const Strides* qs, const uint16_t* key,
                       const Strides* ks, const uint16_t* value, const Strides* vs, uint16_t* mixed, const Strides* ms,
                       float scale, int threads) {
    on_groups(*shape, threads,
              [&] { return Forward(*shape, {query, qs}, {key, ks}, {value, vs}, {mixed, ms}, scale); });
}

void attention_backward(const Shape* shape, const uint16_t* query, const Strides* qs, const uint16_t* key,
                        const Strides* ks, const uint16_t* value, const Strides* vs, const uint16_t* mixed_bar,
                        const Strides* ms, uint16_t* query_bar, const Strides* qbs, uint16_t* key_bar,
                        const Strides* kbs, uint16_t* value_bar, const Strides* vbs, float scale, int threads) {
    on_groups(*shape, threads, [&] {
        return Backward(*shape, {query, qs}, {key, ks}, {value, vs}, {mixed_bar, ms}, {query_bar, qbs}, {key_bar, kbs},
                        {value_bar, vbs}, scale);
    });
}
}
