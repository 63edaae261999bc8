// What all row functions share: the sizes, threads and norms.

#pragma once

#include <cmath>
#include <cstdint>

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

}  // namespace
