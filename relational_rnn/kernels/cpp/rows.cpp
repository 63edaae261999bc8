// The row functions of recurrence.py for a CPU, fused: what a step does besides its matrix products.
//
// rows_torch.py says what each does, README.md derives the backward ones. A function goes once over its rows,
// which stay in the first cache between one norm, the attention and the next norm; loops over features are
// left to the compiler to vectorise. Arithmetic is float32; `Operand` is what matrices are multiplied in.
//
// Shapes: B batch, N slots, M = N + 1 keys, F slot size = H heads x V head size, K key size, D = 2K + V,
// Q = H D, G gates of a kind (F or 1). A gradient of a vector is summed by each thread in a row of its own.

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.hpp"

namespace {

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
