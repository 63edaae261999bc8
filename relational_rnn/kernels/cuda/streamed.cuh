// Products whose weights stream past: every program wants all of them, a step of a sum after the other.

constexpr int NT = F / (8 * WARPS);                           // tensor core tiles of a warp's columns
constexpr int UNITS = NT / 2;                                // 16 bytes a thread of weights in a step of a sum
constexpr int UNIT = THREADS * 16;                           // bytes

// A warp makes all rows of NT x 8 columns of a product, so no two warps want the same weight: each thread asks for its
// own, ahead of time and in the order in which it will want them, through a ring of its own in shared memory. They keep
// coming while the warps do other things; nobody else waits for them.
struct Weights {
  const char *next, *first, *last;  // this thread's share of the step to ask for next, of the first, and behind all
  char* ring;                       // this thread's share of unit 0
};
constexpr int STEP = F / 16 * 512;  // bytes of a step of a sum: 512, 16 a lane, for every 16 columns

__device__ __forceinline__ void ask(Weights& w, int place, int unit) {
  copy_async(w.ring + place * UNIT, w.next + unit * 512);
  commit_async();
  if (unit < UNITS - 1) return;
  w.next += STEP;
  if (w.next == w.last) w.next = w.first;
}
// `products` of [F, F] follow each other in `packed`, and then the first again
__device__ __forceinline__ Weights stream(const void* packed, int products, char* ring) {
  const char* first = (const char*)packed + (threadIdx.x / 32 * UNITS * 32 + threadIdx.x % 32) * 16;
  Weights w{first, first, first + (long)products * KT * STEP, ring + threadIdx.x * 16};
  for (int i = 0; i < DEPTH - 1; i++) ask(w, i, i % UNITS);
  return w;
}

typedef float Sums[MT][NT][4];  // rows lane / 4 and 8 behind it, columns lane % 4 * 2 and 1 behind it

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.f;
}
// sums += tile x the next weights
__device__ __forceinline__ void multiply(Sums& sums, Weights& w, char* tile) {
  static_assert(KT * UNITS % DEPTH == 0 && DEPTH % UNITS == 0, "a product must end where the ring does");
  const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
  constexpr int AHEAD = MT <= 2 ? 1 : 0;  // whether there are registers for the next step's operands too
  unsigned a[AHEAD + 1][MT][4];
  Quad b[AHEAD + 1][UNITS];
  const auto rows = [&](int k) {
#pragma unroll
    for (int i = 0; i < MT; i++) load_matrices(a[k % (AHEAD + 1)][i], at(tile, i * 16 + row, (2 * k + half) * 8));
  };
  const auto column = [&](int k, int u) {
    const int place = (k * UNITS + u) % DEPTH;
    wait_async<DEPTH - 2>();
    b[k % (AHEAD + 1)][u] = *(const Quad*)(w.ring + place * UNIT);
    ask(w, (place + DEPTH - 1) % DEPTH, (u + DEPTH - 1) % UNITS);  // into the place that was read the last time
  };
  if (AHEAD) {
    rows(0);
#pragma unroll
    for (int u = 0; u < UNITS; u++) column(0, u);
  }
#pragma unroll 4
  for (int k = 0; k < KT; k++) {
    if (k + AHEAD < KT) rows(k + AHEAD);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      if (k + AHEAD < KT) column(k + AHEAD, u);
      const Quad now = b[k % (AHEAD + 1)][u];
#pragma unroll
      for (int i = 0; i < MT; i++) {
        multiply_add(sums[i][2 * u], a[k % (AHEAD + 1)][i], now.x, now.y);
        multiply_add(sums[i][2 * u + 1], a[k % (AHEAD + 1)][i], now.z, now.w);
      }
    }
  }
}
// Visit the pairs of neighbouring columns a thread has, tile by tile: act(row, column, tile, first, second).
template <class Act>
__device__ __forceinline__ void each_pair(Sums& sums, Act act) {
  const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * (NT * 8) + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 2; k++)
        act(i * 16 + k * 8 + lane / 4, column + j * 8, j, sums[i][j][2 * k], sums[i][j][2 * k + 1]);
}

constexpr bool ALONE = TOGETHER == 1;  // on its multiprocessor: twice the registers, and nobody else to run meanwhile

// A warp's rows below `end`. Where there are registers, MOST at a time: what they want of global memory is asked for
// together, so that one waits while the others do. fetch(row) -> In, use(row, In).
template <int MOST, class Fetch, class Use>
__device__ __forceinline__ void each_row(int end, Fetch fetch, Use use) {
  using In = decltype(fetch(0));
  constexpr int GROUP = ALONE ? (MOST < ROWS / WARPS ? MOST : ROWS / WARPS) : 1;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < end; first += GROUP * WARPS) {
    In in[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++)
      if (first + g * WARPS < end) in[g] = fetch(first + g * WARPS);
#pragma unroll
    for (int g = 0; g < GROUP; g++)
      if (first + g * WARPS < end) use(first + g * WARPS, in[g]);
  }
}
struct Exact { Row x; };               // a row in float32
