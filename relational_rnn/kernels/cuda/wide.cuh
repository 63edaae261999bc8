// Tiles of 64 rows that four warps, a group, multiply together (wgmma): a warp has 16 whole rows of every product in its
// registers, so norms, attention and gates need no other warp. A thread of one more group asks for the weights, slab
// after slab, which all groups of a program read.
//
// Where a thread's features lie. A thread has, of two rows 8 apart (`half`), columns 8 tile + 2 (lane % 4) and the next. Columns
// are numbered so that four neighbouring tiles, a run, are 8 neighbouring features of a thread: 32 run + 8 (lane % 4) + 2 (tile % 4).
// Weights are packed for that (wide_pack.cu), along sums too.

constexpr int GROUPS = WARPS / 4 - 1;  // and one that asks for weights
constexpr int HALVES = ROWS / (32 * GROUPS);  // of a thread's two rows those that are used: fewer rows, more programs
constexpr int RUNS = F / 32;
constexpr int SLICE = 64, SLICES = F / SLICE;        // features of queries, keys and values that are made at a time
constexpr int BARRIERS = 256;                        // bytes, before all else
constexpr int GROUP_TILE = 64 * F * 2;               // bytes
constexpr int SLAB = F * 32 * 2;                     // bytes: 32 of a sum's features for 256 columns; for 192 there is room left
// Behind the tiles and the weights' ring: all vectors, then what squares are made of.
constexpr int VECTORS_AT = BARRIERS + GROUPS * GROUP_TILE + DEPTH * SLAB, COLUMNS = MLP_BIAS + LAYERS * F;
static_assert(F == 256 && ROWS == 32 * HALVES * GROUPS && HALVES <= 2 && N <= 8 * HALVES && SLICE % V == 0 && V % 32 == 0 && 16 * DEPTH <= BARRIERS, "");

#ifndef SIMT
__device__ __forceinline__ void make_barrier(unsigned at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barriers_are_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(unsigned at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void wait_for(unsigned at, int parity) {  // until the round of that parity is over
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}
// Copy to shared memory; the barrier's round is over when all bytes are there.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void meet_group(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
// What was written to shared memory before can be multiplied after it.
__device__ __forceinline__ void show_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
#define TILE_OF(as, i) as(d[i][0]), as(d[i][1]), as(d[i][2]), as(d[i][3])
#define TILES_OF(as, i) \
  TILE_OF(as, i), TILE_OF(as, i + 1), TILE_OF(as, i + 2), TILE_OF(as, i + 3), TILE_OF(as, i + 4), TILE_OF(as, i + 5), TILE_OF(as, i + 6), TILE_OF(as, i + 7)
#define NAMES_24                                                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "    \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "    \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, "    \
  "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "    \
  "%90, %91, %92, %93, %94, %95"
#define NAMES_32                                                                                                     \
  NAMES_24 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "     \
           "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MULTIPLY(columns, names, a, b, add) \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" names "}, " a ", " b ", " add ", 1, 1, 0, 0;"
// d = 16 of a sum's features, or d += them; `a` and `b` say where the operands lie (`operand`)
__device__ __forceinline__ void multiply_first(float (&d)[24][4], unsigned long long a, unsigned long long b) {
  asm volatile(MULTIPLY("192", NAMES_24, "%96", "%97", "0")
               : TILES_OF("=f", 0), TILES_OF("=f", 8), TILES_OF("=f", 16) : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_more(float (&d)[24][4], unsigned long long a, unsigned long long b) {
  asm volatile(MULTIPLY("192", NAMES_24, "%96", "%97", "1")
               : TILES_OF("+f", 0), TILES_OF("+f", 8), TILES_OF("+f", 16) : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_first(float (&d)[32][4], unsigned long long a, unsigned long long b) {
  asm volatile(MULTIPLY("256", NAMES_32, "%128", "%129", "0")
               : TILES_OF("=f", 0), TILES_OF("=f", 8), TILES_OF("=f", 16), TILES_OF("=f", 24) : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_more(float (&d)[32][4], unsigned long long a, unsigned long long b) {
  asm volatile(MULTIPLY("256", NAMES_32, "%128", "%129", "1")
               : TILES_OF("+f", 0), TILES_OF("+f", 8), TILES_OF("+f", 16), TILES_OF("+f", 24) : "l"(a), "l"(b));
}
// Groups that multiply get the registers that the last group has no use for.
__device__ __forceinline__ void give_registers() {
  if (GROUPS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
__device__ __forceinline__ void take_registers() {
  if (GROUPS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}
__device__ __forceinline__ unsigned turned(unsigned x) {  // 8 x 8 of bf16, a lane two neighbours of a row: turned over
  unsigned y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
// Write what this kernel does not read again, 16 bytes at once whatever the compiler thinks.
__device__ __forceinline__ void keep_quad(void* p, Quad x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
}
#endif

// An operand in shared memory: blocks of 8 rows of 16 bytes, one after the other for all rows, then for the sum's next 8 features.
__device__ __forceinline__ unsigned long long operand(unsigned address, int rows) {
  const unsigned long long along_sum = rows * 16 >> 4, along_rows = 128 >> 4;
  return (unsigned long long)(address >> 4 & 0x3fff) | along_sum << 16 | along_rows << 32;
}

// So the compiler knows that it is the same for all lanes: where it does not, it has products wait for each other.
__device__ __forceinline__ int warp_number() { return (int)from_lane(threadIdx.x / 32, 0); }

// ---------------------------------------------------------------- weights, slab after slab
struct Ring {
  unsigned base;  // of shared memory
  int place, round;

  __device__ __forceinline__ unsigned full() const { return base + 16 * place; }
  __device__ __forceinline__ unsigned empty(int at) const { return base + 16 * at + 8; }
  __device__ __forceinline__ unsigned slab() const { return base + BARRIERS + GROUPS * GROUP_TILE + place * SLAB; }
  __device__ __forceinline__ void next() {
    if (++place == DEPTH) place = 0, round ^= 1;
  }
};
__device__ __forceinline__ const float* shared_vectors() { return (const float*)(shared_memory() + VECTORS_AT); }
// All threads. Vectors are copied to where no row drives them out: in the cache that is left they would not stay.
__device__ __forceinline__ Ring make_ring(const float* vectors, const float* squares_of) {
  const Ring ring{shared_address(shared_memory()), 0, 0};
  float* const to = (float*)(shared_memory() + VECTORS_AT);
  for (int i = threadIdx.x; i < COLUMNS; i += THREADS) to[i] = vectors[i];
  for (int i = threadIdx.x; i <= 2 * F; i += THREADS) to[COLUMNS + i] = squares_of[i];
  if (threadIdx.x == 0) {
    for (int i = 0; i < DEPTH; i++) make_barrier(ring.base + 16 * i, 1), make_barrier(ring.empty(i), 4 * GROUPS);
    barriers_are_made();
  }
  __syncthreads();
  return ring;
}
// One thread: a product's weights for TILES x 8 columns, slab after slab.
constexpr int STEPS = 2;  // of 16 of a sum's features, in a slab
template <int TILES>
__device__ __forceinline__ void ask_product(Ring& ring, const char*& from) {
  static_assert(STEPS * TILES * 256 <= SLAB && KT % STEPS == 0, "");
#pragma unroll 1
  for (int k = 0; k < KT; k += STEPS) {
    wait_for(ring.empty(ring.place), ring.round ^ 1);  // the first round finds all places empty
    copy_bulk(ring.slab(), from, STEPS * TILES * 256, ring.full());
    from += STEPS * TILES * 256;
    ring.next();
  }
}
// A group: sums = tile x the next product's weights.
template <int TILES>
__device__ __forceinline__ void multiply(float (&sums)[TILES][4], Ring& ring, unsigned tile) {
  const auto release = [&](int place) {
    if (threadIdx.x % 32 == 0) arrive(ring.empty(place));
  };
  const auto rows = [&](int k) { return operand(tile + k * 2048, 64); };
  const auto weights = [&](int i) { return operand(ring.slab() + i * TILES * 256, TILES * 8); };
  wait_for(ring.full(), ring.round);
  begin_products();
  multiply_first(sums, rows(0), weights(0));
#pragma unroll
  for (int i = 1; i < STEPS; i++) multiply_more(sums, rows(i), weights(i));
  commit_products();
  int before = ring.place;
#pragma unroll 1
  for (int k = STEPS; k < KT; k += STEPS) {
    ring.next();
    wait_for(ring.full(), ring.round);
#pragma unroll
    for (int i = 0; i < STEPS; i++) multiply_more(sums, rows(k + i), weights(i));
    commit_products();
    wait_products<1>();
    release(before);
    before = ring.place;
  }
  wait_products<0>();
  release(before);
  ring.next();
}

// ---------------------------------------------------------------- a thread's features
// A head of a warp's 16 rows as operands of small products (attention.cuh), out of registers.
struct WordRows {
  const unsigned (*words)[2];  // of the head's first tile

  __device__ __forceinline__ void as_left(Fragment& a, int sum) const {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = words[2 * sum + i / 2][i % 2];
  }
  __device__ __forceinline__ void as_right(Fragment& b, int sum) const {
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = words[2 * sum + i % 2][i / 2];
  }
  __device__ __forceinline__ void as_turned(Fragment& b, int sum) const {
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = turned(words[2 * sum + i / 2][i % 2]);
  }
};
typedef unsigned Words[4 * RUNS][2];  // two neighbouring features of each tile, of each half
typedef float Run[8];

__device__ __forceinline__ void load_run(Run& x, const float* p) {
  const float4 a = *(const float4*)p, b = *(const float4*)(p + 4);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void store_run(float* p, const Run& x) {
  *(float4*)p = make_float4(x[0], x[1], x[2], x[3]), *(float4*)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}
// the tile of a group: tile t of a row's columns is 16 bytes
__device__ __forceinline__ unsigned* word_at(char* tile, int t, int half) {
  const int lane = threadIdx.x % 32;
  return (unsigned*)(tile + t * 1024 + (threadIdx.x / 32 % 4 * 2 + half) * 128 + lane / 4 * 16 + lane % 4 * 4);
}
__device__ __forceinline__ void put_words(char* tile, const Words& words) {
#pragma unroll
  for (int t = 0; t < 4 * RUNS; t++)
#pragma unroll
    for (int half = 0; half < HALVES; half++) *word_at(tile, t, half) = words[t][half];
}
struct Own {       // of a thread
  int group, row;  // the first of its warp's rows in the program
  int valid;       // behind the last of those that there are
  long base;       // the program's first among all rows of a step
  char* tile;      // the group's

  __device__ __forceinline__ int row_of(int half) const { return row + threadIdx.x % 32 / 4 + 8 * half; }
  __device__ __forceinline__ bool there(int half) const { return row_of(half) < valid; }
  __device__ __forceinline__ long all_of(int half) const { return base + row_of(half); }  // among all rows of a step
  __device__ __forceinline__ int feature(int run) const { return run * 32 + threadIdx.x % 4 * 8; }
  __device__ __forceinline__ long at(int run, int half) const { return all_of(half) * F + feature(run); }
  // Who multiplied the tile has waited for it; when all have, it can be overwritten, and multiplied when all wrote.
  __device__ __forceinline__ void replace(const Words& words) const {
    meet_group(group);
    put_words(tile, words);
    show_tensor_cores();
    meet_group(group);
  }
};
__device__ __forceinline__ Own own_of(int first, int samples) {  // of a program's samples
  const int warp = threadIdx.x / 32, group = warp / 4;
  const int row = (group * 4 + warp % 4) * 8 * HALVES;
  return Own{group, row, min(samples * N, row + 8 * HALVES), (long)first * N, shared_memory() + BARRIERS + group * GROUP_TILE};
}
__device__ __forceinline__ void round_run(const Run& x, Words& words, int run, int half) {
#pragma unroll
  for (int j = 0; j < 4; j++) words[4 * run + j][half] = round2(x[2 * j], x[2 * j + 1]);
}
// act(run, half), all of a thread's
template <class Act>
__device__ __forceinline__ void each_run(Act act) {
#pragma unroll
  for (int run = 0; run < RUNS; run++)
#pragma unroll
    for (int half = 0; half < HALVES; half++) act(run, half);
}
__device__ __forceinline__ Quad quad_of(const Words& words, int run, int half) {
  return Quad{words[4 * run][half], words[4 * run + 1][half], words[4 * run + 2][half], words[4 * run + 3][half]};
}
typedef float Sums[4 * RUNS][4];

template <class Tiles>
__device__ __forceinline__ auto& part_of(Tiles& sums, int run, int half, int e) {  // feature e of a run
  return sums[4 * run + e / 2][2 * half + e % 2];
}

// both rows of a thread become (x - mean) / deviation
__device__ __forceinline__ void normalize(Sums& x, float (&scale)[2]) {
#pragma unroll
  for (int half = 0; half < HALVES; half++) {
    float sum = 0.f, squares = 0.f;
#pragma unroll
    for (int t = 0; t < 4 * RUNS; t++) sum += x[t][2 * half] + x[t][2 * half + 1];
    const float mean = quad_sum(sum) / F;
#pragma unroll
    for (int t = 0; t < 4 * RUNS; t++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float& y = x[t][2 * half + i];
        y -= mean, squares += y * y;
      }
    scale[half] = reciprocal_root(quad_sum(squares) / F + EPSILON);
#pragma unroll
    for (int t = 0; t < 4 * RUNS; t++) x[t][2 * half] *= scale[half], x[t][2 * half + 1] *= scale[half];
  }
}
