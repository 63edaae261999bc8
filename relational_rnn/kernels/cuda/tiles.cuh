// What the sequence kernels are made of: tiles of bf16 rows in shared memory, weights that stream past them through
// the tensor cores, and rows held by a warp. README.md says why; shapes.py gives the sizes:
//   F features of a slot, N slots, HEADS, ROWS of a tile (whole samples, up to ROWS / N of them), LAYERS of the MLP,
//   WARPS of a program, CLUSTER of programs that share a tile where weights stay (else 1), DEPTH of the weights' ring,
//   WIDE whether groups of warps multiply together (wide.cuh),
//   GATES 0 none, 1 two a slot ("memory"), 2 two a feature ("unit").
// The same source runs on a CPU in tests/kernels/simt, which stands in for the few instructions below.

constexpr int THREADS = 32 * WARPS;
constexpr int MT = ROWS / 16, KT = F / 16;                   // tensor core tiles: of rows, of a sum
constexpr int E = F / 32;                                    // features of a lane, where a warp holds a row
constexpr int V = F / HEADS;                                 // features of a head
constexpr int Q = 3 * F;
constexpr int PRODUCTS = 3 + LAYERS + (GATES == 2 ? 2 : 0);  // of [F, F] a step
constexpr int TILE = ROWS * F * 2;                           // bytes
constexpr float EPSILON = 1e-5f;

// where each vector begins among all of them; Parameters.vectors has the same order
constexpr int QKV_BIAS = 0, QKV_WEIGHT = Q, QKV_SHIFT = 2 * Q, READ_WEIGHT = 3 * Q, READ_SHIFT = READ_WEIGHT + F;
constexpr int MLP_WEIGHT = READ_SHIFT + F, MLP_SHIFT = MLP_WEIGHT + F, MLP_BIAS = MLP_SHIFT + F;

typedef unsigned short bf16;  // its bits

#ifndef SIMT
__device__ __forceinline__ char* shared_memory() {
  extern __shared__ __align__(16) char shared[];
  return shared;
}
struct alignas(8) Pair { unsigned x, y; };
struct alignas(16) Quad { unsigned x, y, z, w; };

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Read what other threads have written: from the cache that all share.
__device__ __forceinline__ Quad fresh(const Quad* p) {
  const uint4 x = __ldcg((const uint4*)p);
  return Quad{x.x, x.y, x.z, x.w};
}
__device__ __forceinline__ Pair fresh(const Pair* p) {
  const uint2 x = __ldcg((const uint2*)p);
  return Pair{x.x, x.y};
}
__device__ __forceinline__ float fresh(const float* p) { return __ldcg(p); }
__device__ __forceinline__ float2 fresh(const float2* p) { return __ldcg(p); }
__device__ __forceinline__ float4 fresh(const float4* p) { return __ldcg(p); }

__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_async() {  // until all but the last LEFT groups have arrived
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned (&a)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(p)));
}
// the same, each matrix turned over
__device__ __forceinline__ void load_turned(unsigned (&a)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(p)));
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned round2(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// What no tensor core multiplies is kept as float16, which loses less than bf16; it saturates.
__device__ __forceinline__ unsigned halves(float low, float high) {
  unsigned both;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ float2 from_halves(unsigned both) {
  float2 x;
  asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(x.x), "=f"(x.y) : "r"(both));
  return x;
}
// The same pointer; what it points to is then loaded where it is wanted, not kept in registers from before a loop on.
__device__ __forceinline__ const float* anew(const float* p) {
  asm volatile("" : "+l"(p));
  return p;
}
__device__ __forceinline__ float reciprocal_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ float exponential(float x) { return __expf(x); }
__device__ __forceinline__ float quotient(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ float tangent(float x) {  // within 2^-11 of itself, half of what bf16 rounds
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float exchange(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
__device__ __forceinline__ unsigned from_lane(unsigned x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
#endif

__device__ __forceinline__ float low(unsigned both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(unsigned both) { return __uint_as_float(both & 0xffff0000u); }
__device__ __forceinline__ float real(float x) { return x; }
__device__ __forceinline__ float real(bf16 x) { return low(x); }
__device__ __forceinline__ float rounded(float x) { return low(round2(x, 0.f)); }
__device__ __forceinline__ float sigmoid(float x) { return 0.5f * tangent(0.5f * x) + 0.5f; }

// ---------------------------------------------------------------- a row in a warp: E features a lane
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += exchange(x, lanes);
  return x;
}
typedef float Row[E];

__device__ __forceinline__ void unpack(float* x, Quad eight) {
  x[0] = low(eight.x), x[1] = high(eight.x), x[2] = low(eight.y), x[3] = high(eight.y);
  x[4] = low(eight.z), x[5] = high(eight.z), x[6] = low(eight.w), x[7] = high(eight.w);
}
__device__ __forceinline__ Quad pack(const float* x) {
  return Quad{round2(x[0], x[1]), round2(x[2], x[3]), round2(x[4], x[5]), round2(x[6], x[7])};
}
__device__ __forceinline__ void unpack(Row& x, Pair four) {
  x[0] = low(four.x), x[1] = high(four.x), x[2] = low(four.y), x[3] = high(four.y);
}
__device__ __forceinline__ void load(Row& x, const bf16* p) {
  if constexpr (E == 4) unpack(x, *(const Pair*)p);
  else
#pragma unroll
    for (int i = 0; i < E; i += 8) unpack(x + i, *(const Quad*)(p + i));
}
__device__ __forceinline__ void load_fresh(Row& x, const bf16* p) {
  if constexpr (E == 4) unpack(x, fresh((const Pair*)p));
  else
#pragma unroll
    for (int i = 0; i < E; i += 8) unpack(x + i, fresh((const Quad*)(p + i)));
}
__device__ __forceinline__ void load(Row& x, const float* p) {
#pragma unroll
  for (int i = 0; i < E; i += 4) {
    const float4 four = *(const float4*)(p + i);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}
__device__ __forceinline__ void load_fresh(Row& x, const float* p) {
#pragma unroll
  for (int i = 0; i < E; i += 4) {
    const float4 four = fresh((const float4*)(p + i));
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}
__device__ __forceinline__ void store(bf16* p, const Row& x) {
  if constexpr (E == 4) {
    *(Pair*)p = Pair{round2(x[0], x[1]), round2(x[2], x[3])};
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 8) *(Quad*)(p + i) = pack(x + i);
  }
}
__device__ __forceinline__ void store(float* p, const Row& x) {
#pragma unroll
  for (int i = 0; i < E; i += 4) *(float4*)(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

// sixteen bits a feature, as they lie in global memory, asked for before they are wanted
struct Packed { unsigned x[E / 2]; };
template <bool FRESH>
__device__ __forceinline__ Packed packed(const bf16* p) {
  Packed row;
  if constexpr (E == 4) {
    const Pair four = FRESH ? fresh((const Pair*)p) : *(const Pair*)p;
    row.x[0] = four.x, row.x[1] = four.y;
  } else {
#pragma unroll
    for (int i = 0; i < E / 2; i += 4) {
      const Quad eight = FRESH ? fresh((const Quad*)(p + i * 2)) : *(const Quad*)(p + i * 2);
      row.x[i] = eight.x, row.x[i + 1] = eight.y, row.x[i + 2] = eight.z, row.x[i + 3] = eight.w;
    }
  }
  return row;
}
__device__ __forceinline__ Packed ask(const bf16* p, bool there = true) { return there ? packed<false>(p) : Packed{}; }
__device__ __forceinline__ Packed ask_fresh(const bf16* p) { return packed<true>(p); }
__device__ __forceinline__ void unpack(Row& x, const Packed& row) {
#pragma unroll
  for (int i = 0; i < E / 2; i++) x[2 * i] = low(row.x[i]), x[2 * i + 1] = high(row.x[i]);
}

// x becomes (x - mean) / deviation; the result is 1 / deviation
__device__ __forceinline__ float normalize(Row& x) {
  float sum = 0.f, squares = 0.f;
#pragma unroll
  for (int i = 0; i < E; i++) sum += x[i];
  float mean = warp_sum(sum) / F;
#pragma unroll
  for (int i = 0; i < E; i++) x[i] -= mean, squares += x[i] * x[i];
  float scale = reciprocal_root(warp_sum(squares) / F + EPSILON);
#pragma unroll
  for (int i = 0; i < E; i++) x[i] *= scale;
  return scale;
}

// The norm's backward pass: delta, of the normed and weighted row, becomes that of the raw one; adds to the sums.
__device__ __forceinline__ void norm_backward(Row& delta, const Row& normed, const Row& weight, float scale,
                                              Row& sum_weight, Row& sum_shift) {
  float mean = 0.f, along = 0.f;
#pragma unroll
  for (int e = 0; e < E; e++) {
    sum_weight[e] += delta[e] * normed[e], sum_shift[e] += delta[e];
    delta[e] *= weight[e], mean += delta[e], along += delta[e] * normed[e];
  }
  mean = warp_sum(mean) / F, along = warp_sum(along) / F;
#pragma unroll
  for (int e = 0; e < E; e++) delta[e] = (delta[e] - mean - normed[e] * along) * scale;
}

// ---------------------------------------------------------------- tiles: [ROWS, F] of bf16 in shared memory
// Units of 16 bytes are swapped within a row by the row's number, so that eight rows of a column of units lie in eight
// different groups of banks.
__device__ __forceinline__ bf16* at(char* tile, int row, int column) {
  return (bf16*)(tile + row * (F * 2) + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2);
}
__device__ __forceinline__ void load_tile(Row& x, char* tile, int row, int lane) {
  if constexpr (E == 4) {
    load(x, at(tile, row, lane * E));
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 8) unpack(x + i, *(const Quad*)at(tile, row, lane * E + i));
  }
}
__device__ __forceinline__ void store_tile(char* tile, int row, int lane, const Row& x) {
  if constexpr (E == 4) *(Pair*)at(tile, row, lane * E) = Pair{round2(x[0], x[1]), round2(x[2], x[3])};
  else
#pragma unroll
    for (int i = 0; i < E; i += 8) *(Quad*)at(tile, row, lane * E + i) = pack(x + i);
}

__device__ __forceinline__ void store_tile(char* tile, int row, int lane, const Packed& x) {
  if constexpr (E == 4) *(Pair*)at(tile, row, lane * E) = Pair{x.x[0], x.x[1]};
  else
#pragma unroll
    for (int i = 0; i < E; i += 8) *(Quad*)at(tile, row, lane * E + i) = Quad{x.x[i / 2], x.x[i / 2 + 1], x.x[i / 2 + 2], x.x[i / 2 + 3]};
}

// the same as float16
__device__ __forceinline__ void unpack_halves(float* x, unsigned both) {
  const float2 two = from_halves(both);
  x[0] = two.x, x[1] = two.y;
}
__device__ __forceinline__ void load_halves(Row& x, char* tile, int row, int lane) {
  if constexpr (E == 4) {
    const Pair four = *(const Pair*)at(tile, row, lane * E);
    unpack_halves(x, four.x), unpack_halves(x + 2, four.y);
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 8) {
      const Quad eight = *(const Quad*)at(tile, row, lane * E + i);
      unpack_halves(x + i, eight.x), unpack_halves(x + i + 2, eight.y);
      unpack_halves(x + i + 4, eight.z), unpack_halves(x + i + 6, eight.w);
    }
  }
}
__device__ __forceinline__ void store_halves(char* tile, int row, int lane, const Row& x) {
  if constexpr (E == 4) {
    *(Pair*)at(tile, row, lane * E) = Pair{halves(x[0], x[1]), halves(x[2], x[3])};
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 8)
      *(Quad*)at(tile, row, lane * E + i) = Quad{halves(x[i], x[i + 1]), halves(x[i + 2], x[i + 3]),
                                                 halves(x[i + 4], x[i + 5]), halves(x[i + 6], x[i + 7])};
  }
}

// The operands of a small product, 16 x 16 each, from tiles; `turned` where the sum is over rows.
typedef unsigned Fragment[4];

__device__ __forceinline__ void left(Fragment& a, char* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  load_matrices(a, at(tile, row + lane % 16, column + lane / 16 * 8));
}
__device__ __forceinline__ void right(Fragment& b, char* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  load_matrices(b, at(tile, row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
}
__device__ __forceinline__ void right_turned(Fragment& b, char* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  load_turned(b, at(tile, row + lane % 16, column + lane / 16 * 8));
}
__device__ __forceinline__ void put(char* tile, int row, int column, float first, float second) {
  *(unsigned*)at(tile, row, column) = round2(first, second);
}
__device__ __forceinline__ void put_halves(char* tile, int row, int column, float first, float second) {
  *(unsigned*)at(tile, row, column) = halves(first, second);
}
