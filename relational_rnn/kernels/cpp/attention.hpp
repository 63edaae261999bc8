// The attention of a sample's slots to each other and to the input, with the norms before and after it; and back.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "rows.hpp"

namespace {

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
