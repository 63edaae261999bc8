// The row functions of recurrence.py for a CPU, fused: what a step does besides its matrix products.
//
// rows_torch.py says what each does, README.md derives the backward ones. A function goes once over its rows,
// which stay in the first cache between one norm, the attention and the next norm; loops over features are
// left to the compiler to vectorise. Arithmetic is float32; `Operand` is what matrices are multiplied in.
//
// Shapes: B batch, N slots, M = N + 1 keys, F slot size = H heads x V head size, K key size, D = 2K + V,
// Q = H D, G gates of a kind (F or 1). A gradient of a vector is summed by each thread in a row of its own.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "numbers.hpp"

struct Sizes {
    int batch, slots, heads, keys, values, threads;
    int columns;  // of all threads' sums
    int style;  // of gates: 0 none, 1 a gate for every feature, 2 for every slot
    float scale;  // of the attention logits

    int size() const { return heads * values; }
    int head() const { return 2 * keys + values; }
    int features() const { return heads * head(); }
    int rows() const { return batch * slots; }
};

namespace {

constexpr float EPSILON = 1e-5f;  // of every norm
constexpr int NONE = 0, UNIT = 1, MEMORY = 2;  // styles of gates

// body(thread, first, last) for equal parts of `count`, each on a thread of its own.
template <typename Body>
void share_out(int count, const Sizes& z, Body body) {
#pragma omp parallel for num_threads(z.threads) if (z.threads > 1) schedule(static, 1)
    for (int thread = 0; thread < z.threads; ++thread)
        body(thread, int(int64_t(count) * thread / z.threads), int(int64_t(count) * (thread + 1) / z.threads));
}

// x -> (x - mean) / deviation in place; returns 1 / deviation.
inline float normalise(float* __restrict__ x, int size) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < size; ++i) sum += x[i];
    const float mean = sum / size;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < size; ++i) {
        x[i] -= mean;
        squares += x[i] * x[i];
    }
    const float inverse = 1 / std::sqrt(squares / size + EPSILON);
#pragma omp simd
    for (int i = 0; i < size; ++i) x[i] *= inverse;
    return inverse;
}

// d, the gradient of a norm's result, to that of what it normalised, in place; adds to those of its weight and shift.
inline void norm_backward(
    float* __restrict__ d, const float* __restrict__ normed, const float* __restrict__ weight, float inverse,
    float* __restrict__ d_weight, float* __restrict__ d_shift, int size
) {
    float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (int i = 0; i < size; ++i) {
        const float g = d[i], x = normed[i];
        d_weight[i] += g * x;
        d_shift[i] += g;
        const float weighted = g * weight[i];
        d[i] = weighted;
        sum += weighted;
        product += weighted * x;
    }
    const float mean = sum / size, slope = product / size;
#pragma omp simd
    for (int i = 0; i < size; ++i) d[i] = (d[i] - mean - normed[i] * slope) * inverse;
}

template <int FIXED>
inline float dot(const float* __restrict__ a, const float* __restrict__ b, int size) {
    const int n = FIXED ? FIXED : size;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

template <int FIXED>
inline void add(float* __restrict__ to, const float* __restrict__ x, float times, int size) {
    const int n = FIXED ? FIXED : size;
#pragma omp simd
    for (int i = 0; i < n; ++i) to[i] += times * x[i];
}

inline void scale_and_shift(
    const Operand* __restrict__ normed, const float* __restrict__ weight, const float* __restrict__ shift,
    float* __restrict__ to, int features
) {
#pragma omp simd
    for (int i = 0; i < features; ++i) to[i] = load(normed[i]) * weight[i] + shift[i];
}

// Both gates of a row, one after the other, for every feature.
inline void open_gates(const Operand* memorys, const Operand* inputs, float* gates, int each, int size) {
#pragma omp simd
    for (int i = 0; i < 2 * each; ++i) gates[i] = sigmoid(load(memorys[i]) + load(inputs[i]));
    if (each < size) {
        const float accept = gates[0], retain = gates[1];
        std::fill(gates, gates + size, accept);
        std::fill(gates + size, gates + 2 * size, retain);
    }
}

inline void total_gradient(
    const float* direct, const Operand* through_qkv, const Operand* through_gates, const Operand* hidden, float* total, int size
) {
#pragma omp simd
    for (int i = 0; i < size; ++i) total[i] = direct[i] + load(through_qkv[i]);
    if (through_gates)
#pragma omp simd
        for (int i = 0; i < size; ++i) {
            const float h = load(hidden[i]);
            total[i] += load(through_gates[i]) * (1 - h * h);
        }
}

template <int FIXED>
void attend_heads(
    const Sizes& z, const float* memory, Operand* qkv, const float* input, Operand* attended, float* inverse,
    float* shares, float* normed, float* attended_inverse, const float* bias, const float* weight,
    const float* shift, const float* attended_weight, const float* attended_shift
) {
    const int N = z.slots, M = N + 1, H = z.heads, K = z.keys, V = z.values, D = z.head(), Q = z.features();
    const int F = z.size();
    share_out(z.batch, z, [=](int, int first, int last) {
        std::vector<float> space(M * Q + Q);
        float *all = space.data(), *row = all + M * Q;
        for (int b = first; b < last; ++b) {
            for (int n = 0; n < N; ++n) {
                const int64_t r = int64_t(b) * N + n;
                Operand* product = qkv + r * Q;
#pragma omp simd
                for (int i = 0; i < Q; ++i) row[i] = load(product[i]) + bias[i];
                inverse[r] = normalise(row, Q);
#pragma omp simd
                for (int i = 0; i < Q; ++i) store(product[i], row[i]);
                scale_and_shift(product, weight, shift, all + n * Q, Q);
            }
            std::memcpy(all + N * Q, input + int64_t(b) * Q, Q * sizeof(float));
            float* share = shares + int64_t(b) * H * N * M;
            for (int h = 0; h < H; ++h)
                for (int n = 0; n < N; ++n) {
                    float* logits = share + (h * N + n) * M;
                    const float* query = all + n * Q + h * D;
                    float highest = -INFINITY;
                    for (int m = 0; m < M; ++m) {
                        logits[m] = z.scale * dot<FIXED>(query, all + m * Q + h * D + K, K);
                        highest = logits[m] < highest ? highest : logits[m];
                    }
                    for (int m = 0; m < M; ++m) logits[m] -= highest;
                }
#pragma omp simd
            for (int i = 0; i < H * N * M; ++i) share[i] = exponential(share[i]);
            for (int n = 0; n < N; ++n) {
                const int64_t r = int64_t(b) * N + n;
                float* rows = normed + r * F;
                std::memcpy(rows, memory + r * F, F * sizeof(float));
                for (int h = 0; h < H; ++h) {
                    float* mine = share + (h * N + n) * M;
                    float total = 0;
                    for (int m = 0; m < M; ++m) total += mine[m];
                    const float part = 1 / total;
                    for (int m = 0; m < M; ++m) mine[m] *= part;
                    for (int m = 0; m < M; ++m)
                        add<FIXED>(rows + h * V, all + m * Q + h * D + 2 * K, mine[m], V);
                }
                attended_inverse[r] = normalise(rows, F);
                Operand* to = attended + r * F;
#pragma omp simd
                for (int i = 0; i < F; ++i) store(to[i], rows[i] * attended_weight[i] + attended_shift[i]);
            }
        }
    });
}

template <int FIXED>
void attention_backward_heads(
    const Sizes& z, const Operand* d_attended, const Operand* d_around, float* direct, const Operand* qkv,
    const float* input, const float* inverse, const float* shares, const float* normed,
    const float* attended_inverse, const float* weight, const float* shift, const float* attended_weight,
    Operand* d_qkv, Operand* d_input, float* sums
) {
    const int N = z.slots, M = N + 1, H = z.heads, K = z.keys, V = z.values, D = z.head(), Q = z.features();
    const int F = z.size();
    share_out(z.batch, z, [=](int thread, int first, int last) {
        float* d_bias = sums + int64_t(thread) * z.columns;
        float *d_weight = d_bias + Q, *d_shift = d_weight + Q;
        float *d_attended_weight = d_shift + Q, *d_attended_shift = d_attended_weight + F;
        std::vector<float> space(2 * M * Q + N * F + Q + M);
        float *all = space.data(), *d_all = all + M * Q, *d_read = d_all + M * Q, *row = d_read + N * F;
        float* d_logits = row + Q;
        for (int b = first; b < last; ++b) {
            for (int n = 0; n < N; ++n) {
                const int64_t r = int64_t(b) * N + n;
                float* d = d_read + n * F;
#pragma omp simd
                for (int i = 0; i < F; ++i) d[i] = load(d_attended[r * F + i]) + load(d_around[r * F + i]);
                norm_backward(
                    d, normed + r * F, attended_weight, attended_inverse[r], d_attended_weight, d_attended_shift, F
                );
#pragma omp simd
                for (int i = 0; i < F; ++i) direct[r * F + i] += d[i];
                scale_and_shift(qkv + r * Q, weight, shift, all + n * Q, Q);
            }
            std::memcpy(all + N * Q, input + int64_t(b) * Q, Q * sizeof(float));
            std::fill(d_all, d_all + M * Q, 0.0f);
            for (int h = 0; h < H; ++h)
                for (int n = 0; n < N; ++n) {
                    const float* share = shares + ((int64_t(b) * H + h) * N + n) * M;
                    const float* d = d_read + n * F + h * V;
                    float mean = 0;
                    for (int m = 0; m < M; ++m) {
                        d_logits[m] = dot<FIXED>(d, all + m * Q + h * D + 2 * K, V);
                        mean += share[m] * d_logits[m];
                    }
                    float* d_query = d_all + n * Q + h * D;
                    for (int m = 0; m < M; ++m) {
                        float *d_key = d_all + m * Q + h * D + K, *d_value = d_key + K;
                        const float* key = all + m * Q + h * D + K;
                        const float slope = share[m] * (d_logits[m] - mean) * z.scale;
                        add<FIXED>(d_query, key, slope, K);
                        add<FIXED>(d_key, all + n * Q + h * D, slope, K);
                        add<FIXED>(d_value, d, share[m], V);
                    }
                }
            for (int n = 0; n < N; ++n) {
                const int64_t r = int64_t(b) * N + n;
                float* d = d_all + n * Q;
#pragma omp simd
                for (int i = 0; i < Q; ++i) row[i] = load(qkv[r * Q + i]);
                norm_backward(d, row, weight, inverse[r], d_weight, d_shift, Q);
#pragma omp simd
                for (int i = 0; i < Q; ++i) {
                    d_bias[i] += d[i];
                    store(d_qkv[r * Q + i], d[i]);
                }
            }
            const float* d = d_all + N * Q;
#pragma omp simd
            for (int i = 0; i < Q; ++i) store(d_input[int64_t(b) * Q + i], d[i]);
        }
    });
}

// What is done with heads of a size that the compiler knows, where queries, keys and values are equally long.
template <typename Body>
void for_heads(const Sizes& z, Body body) {
    switch (z.keys == z.values ? z.keys : 0) {
        case 8: return body(std::integral_constant<int, 8>());
        case 16: return body(std::integral_constant<int, 16>());
        case 32: return body(std::integral_constant<int, 32>());
        case 64: return body(std::integral_constant<int, 64>());
        default: return body(std::integral_constant<int, 0>());
    }
}

}  // namespace

extern "C" {

void begin(
    const Sizes& z, const float* memory, const bool* reset, float* out, Operand* rows, Operand* hidden
) {
    const int size = z.size();
    share_out(z.rows(), z, [=](int, int first, int last) {
        for (int row = first; row < last; ++row) {
            const bool fresh = reset && reset[row / z.slots];
            const int64_t at = int64_t(row) * size;
            for (int i = 0; i < size; ++i) {
                const float x = fresh ? float(i == row % z.slots) : memory[at + i];
                if (out) out[at + i] = x;
                store(rows[at + i], x);
                if (hidden) store(hidden[at + i], hyperbolic_tangent(x));
            }
        }
    });
}

void attend(
    const Sizes& z, const float* memory, Operand* qkv, const float* input, Operand* attended, float* inverse,
    float* shares, float* normed, float* attended_inverse, const float* bias, const float* weight,
    const float* shift, const float* attended_weight, const float* attended_shift
) {
    for_heads(z, [&](auto fixed) {
        attend_heads<fixed()>(
            z, memory, qkv, input, attended, inverse, shares, normed, attended_inverse, bias, weight, shift,
            attended_weight, attended_shift
        );
    });
}

void attention_backward(
    const Sizes& z, const Operand* d_attended, const Operand* d_around, float* direct, const Operand* qkv,
    const float* input, const float* inverse, const float* shares, const float* normed,
    const float* attended_inverse, const float* weight, const float* shift, const float* attended_weight,
    Operand* d_qkv, Operand* d_input, float* sums
) {
    for_heads(z, [&](auto fixed) {
        attention_backward_heads<fixed()>(
            z, d_attended, d_around, direct, qkv, input, inverse, shares, normed, attended_inverse, weight, shift,
            attended_weight, d_qkv, d_input, sums
        );
    });
}

void update(
    const Sizes& z, const float* memory, const Operand* attended, Operand* mlp, const Operand* gates,
    const Operand* gates_in, const float* bias, const float* weight, const float* shift, float* inverse,
    float* out, Operand* next_rows, Operand* next_hidden
) {
    const int F = z.size(), G = z.style == UNIT ? F : 1;
    share_out(z.rows(), z, [=](int, int first, int last) {
        std::vector<float> space(3 * F);
        float *x = space.data(), *accept = x + F, *retain = accept + F;
        for (int r = first; r < last; ++r) {
            const int64_t at = int64_t(r) * F;
            float* to = out + at;
#pragma omp simd
            for (int i = 0; i < F; ++i) x[i] = load(mlp[at + i]) + bias[i] + load(attended[at + i]);
            inverse[r] = normalise(x, F);
#pragma omp simd
            for (int i = 0; i < F; ++i) {
                store(mlp[at + i], x[i]);
                x[i] = x[i] * weight[i] + shift[i];
            }
            if (z.style == NONE)
                std::memcpy(to, x, F * sizeof(float));
            else {
                open_gates(gates + int64_t(r) * 2 * G, gates_in + int64_t(r / z.slots) * 2 * G, accept, G, F);
#pragma omp simd
                for (int i = 0; i < F; ++i)
                    to[i] = accept[i] * hyperbolic_tangent(x[i]) + retain[i] * memory[at + i];
            }
            if (next_rows)
#pragma omp simd
                for (int i = 0; i < F; ++i) store(next_rows[at + i], to[i]);
            if (next_hidden)
#pragma omp simd
                for (int i = 0; i < F; ++i) store(next_hidden[at + i], hyperbolic_tangent(to[i]));
        }
    });
}

void update_backward(
    const Sizes& z, const float* grad, float* direct, const Operand* through_qkv, const Operand* through_gates,
    const Operand* after, const bool* reset, const float* memory, const Operand* mlp, const Operand* gates,
    const Operand* gates_in, const float* inverse, const float* weight, const float* shift, Operand* d_mlp, Operand* d_gates, float* sums
) {
    const int F = z.size(), G = z.style == UNIT ? F : 1;
    share_out(z.rows(), z, [=](int thread, int first, int last) {
        float *d_weight = sums + int64_t(thread) * z.columns, *d_shift = d_weight + F, *d_bias = d_shift + F;
        std::vector<float> space(5 * F);
        float *d = space.data(), *x = d + F, *c = x + F, *accept = c + F, *retain = accept + F;
        for (int r = first; r < last; ++r) {
            const int64_t at = int64_t(r) * F;
#pragma omp simd
            for (int i = 0; i < F; ++i) {
                x[i] = load(mlp[at + i]);
                c[i] = hyperbolic_tangent(x[i] * weight[i] + shift[i]);
            }
            if (reset && reset[r / z.slots])
                std::fill(d, d + F, 0.0f);
            else
                total_gradient(
                    direct + at, through_qkv + at, through_gates ? through_gates + at : nullptr,
                    after ? after + at : nullptr, d, F
                );
#pragma omp simd
            for (int i = 0; i < F; ++i) d[i] += grad[at + i];
            if (z.style == NONE)
                std::fill(direct + at, direct + at + F, 0.0f);
            else {
                open_gates(gates + int64_t(r) * 2 * G, gates_in + int64_t(r / z.slots) * 2 * G, accept, G, F);
                Operand* d_mine = d_gates + int64_t(r) * 2 * G;
                float d_accept = 0, d_retain = 0;
#pragma omp simd reduction(+ : d_accept, d_retain)
                for (int i = 0; i < F; ++i) {
                    const float a = accept[i], f = retain[i], both = d[i];
                    accept[i] = both * c[i] * a * (1 - a);
                    retain[i] = both * memory[at + i] * f * (1 - f);
                    d_accept += accept[i];
                    d_retain += retain[i];
                    direct[at + i] = both * f;
                    d[i] = both * a * (1 - c[i] * c[i]);
                }
                if (z.style == MEMORY) {
                    accept[0] = d_accept;
                    accept[1] = d_retain;
                }
#pragma omp simd
                for (int i = 0; i < 2 * G; ++i) store(d_mine[i], accept[i]);
            }
            norm_backward(d, x, weight, inverse[r], d_weight, d_shift, F);
#pragma omp simd
            for (int i = 0; i < F; ++i) {
                d_bias[i] += d[i];
                store(d_mlp[at + i], d[i]);
            }
        }
    });
}

void relu_backward(const Sizes& z, Operand* delta, const Operand* activated, float* sums) {
    const int F = z.size();
    share_out(z.rows(), z, [=](int thread, int first, int last) {
        float* d_bias = sums + int64_t(thread) * z.columns;
        for (int r = first; r < last; ++r) {
            const int64_t at = int64_t(r) * F;
#pragma omp simd
            for (int i = 0; i < F; ++i) {
                const float d = load(activated[at + i]) == 0 ? 0 : load(delta[at + i]);
                d_bias[i] += d;
                store(delta[at + i], d);
            }
        }
    });
}

}
