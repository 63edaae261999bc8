// Weights that stay in shared memory: the CLUSTER programs that share a tile have 32 columns of every product each, and
// all weights of those. They share the rows (norms, gates), OWN each, one a warp, and the units of attention (a head of 16
// rows), one a warp at most. What a program makes it sends to those that want it: no barrier between all programs, only
// counters of bytes (mbarriers), one for each kind of message, that a program waits for.
//
// Nobody sends into a place that may still be read: who overwrites a row has heard, since it was last written, from every
// warp that reads it, and warps send after their last read. README.md goes through this.

constexpr int OWN = ROWS / CLUSTER;
constexpr int SPLIT = MT <= 2 ? 2 : 1;  // warps that share a sum
constexpr int SLOTS = GATES == 2 ? 7 : 5;  // places for such sums
constexpr int ATTENTIONS = MT * HEADS;
static_assert(F / CLUSTER == 32 && OWN <= WARPS && MT * 2 * SPLIT <= WARPS && ATTENTIONS <= WARPS * CLUSTER && ROWS % CLUSTER == 0, "");

// shared memory: counters, weights, four tiles, rows on their way to who normalises them, inner products of attention's
// backward pass, sums on their way to a neighbour; Shape.shared_bytes says the same
constexpr int RAW_ROW = (GATES == 2 ? 5 : 3) * F * 2 + 64;
constexpr int WEIGHTS = 128, TILES = WEIGHTS + PRODUCTS * F * 64, RAW = TILES + 4 * TILE;
constexpr int INNER = RAW + OWN * RAW_ROW, SCRATCH = INNER + WARPS * 64;

#ifndef SIMT
__device__ __forceinline__ int rank() {  // of a program in its cluster
  int number;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
  return number;
}
// Wait for all programs of the cluster; what they wrote, here or to global memory, can be read.
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ unsigned counter(int number) { return shared_address(shared_memory()) + 8 * number; }
__device__ __forceinline__ unsigned of_program(unsigned address, int program) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(program));
  return there;
}
// Before anybody sends: as many counters as there are kinds of messages.
__device__ __forceinline__ void make_counters(int count) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < count; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(counter(i)), "r"(WARPS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  meet();
}
// Write into the shared memory of a program, and count it there.
__device__ __forceinline__ void send(void* to, unsigned x, int program, int number) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   of_program(shared_address(to), program)),
               "r"(x), "r"(of_program(counter(number), program))
               : "memory");
}
__device__ __forceinline__ void send(void* to, Pair x, int program, int number) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                   of_program(shared_address(to), program)),
               "r"(x.x), "r"(x.y), "r"(of_program(counter(number), program))
               : "memory");
}
__device__ __forceinline__ void send(void* to, Quad x, int program, int number) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   of_program(shared_address(to), program)),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(of_program(counter(number), program))
               : "memory");
}
// This warp has sent what it had to; `bytes` will arrive here in all.
__device__ __forceinline__ void sent(int number, int bytes) {
  __syncwarp();
  if (threadIdx.x == 0)
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(counter(number)),
                 "r"(bytes)
                 : "memory");
  else if (threadIdx.x % 32 == 0)
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(counter(number)) : "memory");
}
// Until all of that is here and all warps of this program have sent, the `round`th time.
__device__ __forceinline__ void await(int number, int round) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
      "@there bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(counter(number)),
      "r"(round & 1)
      : "memory");
  __syncwarp();
}
// Wait for the warp that shares a sum with this one.
__device__ __forceinline__ void meet_neighbour() {
  asm volatile("bar.sync %0, 64;" ::"r"(1 + (int)threadIdx.x / 64) : "memory");
}
__device__ __forceinline__ unsigned bits(float x) { return __float_as_uint(x); }
#endif

// ---------------------------------------------------------------- messages
__device__ __forceinline__ Pair four(const float (&x)[4]) { return Pair{round2(x[0], x[1]), round2(x[2], x[3])}; }
__device__ __forceinline__ Pair four_halves(const float (&x)[4]) { return Pair{halves(x[0], x[1]), halves(x[2], x[3])}; }
__device__ __forceinline__ Quad four_exact(const float (&x)[4]) { return Quad{bits(x[0]), bits(x[1]), bits(x[2]), bits(x[3])}; }

template <class T>
__device__ __forceinline__ void send_all(void* to, T x, int number) {
#pragma unroll
  for (int i = 0; i < CLUSTER; i++) send(to, x, (rank() + i) % CLUSTER, number);  // not all to the same at once
}
// a row of a warp into a tile, of one program or of all
__device__ __forceinline__ void send_row(char* tile, int row, const Row& x, int program, int number) {
  char* const to = (char*)at(tile, row, threadIdx.x % 32 * E);
  if constexpr (E == 4) send(to, Pair{round2(x[0], x[1]), round2(x[2], x[3])}, program, number);
  else send(to, pack(x), program, number);
}
__device__ __forceinline__ void send_row_all(char* tile, int row, const Row& x, int number) {
  char* const to = (char*)at(tile, row, threadIdx.x % 32 * E);
  if constexpr (E == 4) send_all(to, Pair{round2(x[0], x[1]), round2(x[2], x[3])}, number);
  else send_all(to, pack(x), number);
}
// Rows on their way to who normalises them: of row `row` of the tile, byte `offset`.
__device__ __forceinline__ char* raw(int row, int offset) { return shared_memory() + RAW + row % OWN * RAW_ROW + offset; }
__device__ __forceinline__ int owner(int row) { return row / OWN; }
// of a head of 16 rows, whose queries they are
__device__ __forceinline__ int attention_program(int row, int head) { return (row / 16 * HEADS + head) % CLUSTER; }
__device__ __forceinline__ int attentions_here() { return (ATTENTIONS - rank() + CLUSTER - 1) / CLUSTER; }
constexpr int ATTENTION_BYTES = 16 * V * 2;  // of one of its operands

__device__ __forceinline__ void load_raw_halves(Row& x, const char* p) {
#pragma unroll
  for (int i = 0; i < E; i += 4) {
    const Pair four = *(const Pair*)(p + i * 2);
    unpack_halves(x + i, four.x), unpack_halves(x + i + 2, four.y);
  }
}
// ---------------------------------------------------------------- products
// A warp makes 16 rows of 16 columns, or, where SPLIT, half of the sum for those. The order of columns (pack.cu) gives a
// thread four neighbours of a row.
__device__ __forceinline__ void load_weights(const void* packed) {
  for (int i = threadIdx.x; i < PRODUCTS * KT * 64; i += THREADS)
    copy_async(shared_memory() + WEIGHTS + i * 16, (const char*)packed + ((i / 64 * (F / 16) + rank() * 2) * 32 + i % 64) * 16);
  commit_async();
  wait_async<0>();
  __syncthreads();
}
// the same for all its lanes, which the compiler must know
__device__ __forceinline__ int warp_number() { return from_lane(threadIdx.x / 32, 0); }

struct Place {  // of a warp in a product
  int warp, part, pair, tile;
  __device__ __forceinline__ Place(int warp)
      : warp(warp), part(SPLIT == 2 ? warp % 2 : 0), pair(warp / SPLIT % 2), tile(warp / SPLIT / 2) {}
  __device__ __forceinline__ bool works() const { return tile < MT; }
  __device__ __forceinline__ int row(int half) const { return tile * 16 + half * 8 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ int column() const { return rank() * 32 + pair * 16 + threadIdx.x % 4 * 4; }
};
typedef float Sums[2][4];
constexpr int HALVES = SPLIT == 2 ? 1 : 2;  // rows of a thread, 8 apart, once sums are whole

// COUNT products that follow each other at once, so that none waits for its own sum: `tile(i)` has the rows of the ith.
template <int COUNT, class Tile>
__device__ __forceinline__ void multiply(Sums (&sums)[COUNT], const Place& place, int product, Tile tile) {
  const int lane = threadIdx.x % 32, row = place.tile * 16 + lane % 16;
  constexpr int STEPS = KT / SPLIT;
  const Quad* const w =
      (const Quad*)(shared_memory() + WEIGHTS) + ((product * KT + place.part * STEPS) * 2 + place.pair) * 32 + lane;
#pragma unroll
  for (int k = 0; k < STEPS; k++) {
    Fragment a;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (i == 0 || tile(i) != tile(i - 1)) load_matrices(a, at(tile(i), row, (2 * (k + place.part * STEPS) + lane / 16) * 8));
      const Quad b = w[(i * KT + k) * 64];
      multiply_add(sums[i][0], a, b.x, b.y);
      multiply_add(sums[i][1], a, b.z, b.w);
    }
  }
}
__device__ __forceinline__ void add(Sums& sums, const Sums& more) {
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) sums[j][k] += more[j][k];
}
// The whole sums: act(which product, which of HALVES, row, first column, four neighbours). Neighbours exchange halves
// through SLOTS places, from `slot` on; two calls that follow each other must not have one in common.
template <int COUNT, class Act>
__device__ __forceinline__ void each_four(const Sums (&sums)[COUNT], const Place& place, int slot, Act act) {
  const int warp = place.warp, lane = threadIdx.x % 32;
  if constexpr (SPLIT == 2) {
    float4* const scratch = (float4*)(shared_memory() + SCRATCH) + slot * THREADS + lane;
    const bool second = place.part == 1;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const Sums& x = sums[i];
      scratch[i * THREADS + (warp ^ 1) * 32] = second ? make_float4(x[0][0], x[0][1], x[1][0], x[1][1])
                                                      : make_float4(x[0][2], x[0][3], x[1][2], x[1][3]);
    }
    meet_neighbour();
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const float4 other = scratch[i * THREADS + warp * 32];
      const Sums& s = sums[i];
      float x[4] = {(second ? s[0][2] : s[0][0]) + other.x, (second ? s[0][3] : s[0][1]) + other.y,
                    (second ? s[1][2] : s[1][0]) + other.z, (second ? s[1][3] : s[1][1]) + other.w};
      act(i, 0, place.row(place.part), place.column(), x);
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float x[4] = {sums[i][0][2 * half], sums[i][0][2 * half + 1], sums[i][1][2 * half], sums[i][1][2 * half + 1]};
        act(i, half, place.row(half), place.column(), x);
      }
  }
}
