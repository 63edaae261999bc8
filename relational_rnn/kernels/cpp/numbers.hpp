// Operands of matrix products and what is computed of single numbers, so that loops over them can be vectorised.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#ifdef BF16
using Operand = uint16_t;

inline float load(Operand x) {
    const uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline void store(Operand& to, float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to = Operand(x != x ? 0x7fc0 : rounded);
}
#else
using Operand = float;

inline float load(Operand x) { return x; }
inline void store(Operand& to, float x) { to = x; }
#endif

// e^x = 2^n e^r with |r| <= ln(2) / 2, by the first eight terms of its series: 1e-7 of it at most off.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;  // NaN stays
    const float n = std::nearbyint(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1;
    series = series * r + 1;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return series * power;
}

inline float sigmoid(float x) { return 1 / (1 + exponential(-x)); }

// By its series near zero, where 1 - 2 / (e^2x + 1) would lose what is small.
inline float hyperbolic_tangent(float x) {
    const float s = x * x;
    float series = 21844.0f / 6081075;
    series = series * s - 1382.0f / 155925;
    series = series * s + 62.0f / 2835;
    series = series * s - 17.0f / 315;
    series = series * s + 2.0f / 15;
    series = series * s - 1.0f / 3;
    const float near = x + x * s * series;
    const float far = 1 - 2 / (exponential(2 * x) + 1);
    return s < 0.0625f ? near : far;
}

}  // namespace
