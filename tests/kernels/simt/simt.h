// Runs a CUDA kernel on a CPU, to test its source where there is no GPU: every thread of a block is a fiber, and what
// threads do together (barriers, exchanges between lanes, tensor core products) waits until all of them are there.
// Copies that a kernel starts and waits for later arrive as late as they may, or, with -DEARLY, at once.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#define SIMT
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(n)
#define __cluster_dims__(...)
#ifndef CLUSTER
#define CLUSTER 1
#endif
using std::min;

struct alignas(8) Pair { unsigned x, y; };
struct alignas(16) Quad { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Index { int x; };

namespace simt {
struct Copy { void* to; const void* from; };
struct Barrier { int arrived = 0, round = 0; };
struct Product { float* to; int tiles; unsigned long long a, b; bool add; };
struct Fiber {
  ucontext_t context;  // to begin with; from then on `place`, since changing contexts costs calls of the system
  jmp_buf place;
  bool begun = false;
  std::vector<char> stack = std::vector<char>(1 << 16);
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
  std::deque<std::vector<Product>> product_groups;
  std::vector<Product> open_products;
  bool done;
  int exchanges;  // which of the two places of a lane is next: nobody can be two exchanges ahead
};
struct Lane { unsigned a[4], b[2]; };
static std::vector<Fiber> fibers;
static int current, threads, first_block, living;
alignas(1024) static char memory[CLUSTER][232 << 10];  // shared memory of each block
static jmp_buf scheduler;
static Barrier all, blocks[CLUSTER], warps[64], neighbours[32], groups[16];
static Lane lanes[2048][2];

inline void pause() {  // let others run
  if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
inline void go_on(Fiber& f) {
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.place, 1);
  f.begun = true;
  setcontext(&f.context);
}
inline void wait(Barrier& barrier, int count) {
  int round = barrier.round;
  if (++barrier.arrived == count) barrier.arrived = 0, barrier.round++;
  else while (barrier.round == round) pause();
}
inline Lane* publish(const unsigned* a, int na, const unsigned* b, int nb) {  // -> this warp's lanes, [lane * 2]
  int place = fibers[current].exchanges++ & 1;
  std::copy(a, a + na, lanes[current][place].a);
  std::copy(b, b + nb, lanes[current][place].b);
  wait(warps[current / 32], 32);
  return &lanes[current / 32 * 32][place];
}
inline float real(unsigned bits16) { unsigned u = bits16 << 16; float f; std::memcpy(&f, &u, 4); return f; }
}  // namespace simt

#define threadIdx (Index{simt::current % simt::threads})
#define blockIdx (Index{simt::first_block + simt::current / simt::threads})
inline int rank() { return simt::current / simt::threads; }
inline char* shared_memory() { return simt::memory[rank()]; }
inline void __syncthreads() { simt::wait(simt::blocks[rank()], simt::threads); }
inline void meet() { simt::wait(simt::all, (int)simt::fibers.size()); }
template <class T>
T fresh(const T* p) { return *p; }
inline const float* anew(const float* p) { return p; }

// What is sent to another program's shared memory arrives some time later, in any order, and is counted there.
namespace simt {
struct Message { char* to; std::vector<char> bytes; int program, number; };
struct Counter { int left = 0; long bytes = 0; int round = 0; };
static std::vector<Message> messages;
static Counter counters[CLUSTER][16];
static int warps_of_block;
inline void settle(Counter& c) {  // all warps have sent, all bytes are there
  if (c.left == 0 && c.bytes == 0) c.left = warps_of_block, c.round++;
}
struct Phase { int count, left; long bytes; int round; };
struct Bulk { char* to; const void* from; int bytes; unsigned barrier; };
static std::map<unsigned, Phase> phases;  // by address
static std::vector<Bulk> bulks;
inline void settle(Phase& p) {
  if (p.left == 0 && p.bytes == 0) p.left = p.count, p.round++;
}
inline void finish(const Bulk& b) {
  std::memcpy(b.to, b.from, b.bytes);
  phases[b.barrier].bytes -= b.bytes;
  settle(phases[b.barrier]);
}
inline void deliver() {
  for (size_t i = 0; i < bulks.size();) {
    if (std::rand() % 3) { i++; continue; }
    finish(bulks[i]);
    bulks.erase(bulks.begin() + i);
  }
  for (size_t i = 0; i < messages.size();) {
    if (std::rand() % 3) { i++; continue; }
    Message m = std::move(messages[i]);
    messages[i] = std::move(messages.back()), messages.pop_back();
    std::memcpy(m.to, m.bytes.data(), m.bytes.size());
    auto& c = counters[m.program][m.number];
    c.bytes -= m.bytes.size();
    settle(c);
  }
}
}  // namespace simt
inline void make_counters(int count) {
  if (count > 16) std::abort();
  if (threadIdx.x == 0)
    for (auto& c : simt::counters[rank()]) c = {simt::warps_of_block, 0, 0};
  meet();
}
template <class T>
void send(void* to, T x, int program, int number) {
  auto from = (char*)&x;
  simt::messages.push_back({simt::memory[program] + ((char*)to - shared_memory()), {from, from + sizeof(T)}, program, number});
}
inline void __syncwarp() { simt::wait(simt::warps[simt::current / 32], 32); }
inline void sent(int number, int bytes) {
  __syncwarp();
  if (threadIdx.x % 32) return;
  auto& c = simt::counters[rank()][number];
  if (threadIdx.x == 0) c.bytes += bytes;
  c.left--;
  simt::settle(c);
}
inline void await(int number, int round) {  // it knows no more than whether the round is even
  while ((simt::counters[rank()][number].round & 1) == (round & 1)) simt::pause();
}
// Groups of four warps that multiply together (cuda/wide.cuh); CLUSTER is 1. Products are made when they are waited for, or,
// with -DEARLY, at once.
inline unsigned shared_address(const void* p) { return (unsigned)((char*)p - shared_memory()); }
inline void make_barrier(unsigned at, int arrivals) { simt::phases[at] = {arrivals, arrivals, 0, 0}; }
inline void barriers_are_made() {}
inline void arrive(unsigned at) {
  if (!simt::phases.count(at)) std::abort();
  simt::phases[at].left--, simt::settle(simt::phases[at]);
}
inline void wait_for(unsigned at, int parity) {
  if (!simt::phases.count(at)) std::abort();
  while ((simt::phases[at].round & 1) == parity) simt::pause();
}
inline void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  std::memset(shared_memory() + to, 0xff, bytes);  // NaN until it has arrived
  auto& p = simt::phases[barrier];
  p.bytes += bytes, p.left--;
  const simt::Bulk bulk{shared_memory() + to, from, bytes, barrier};
#ifdef EARLY
  simt::finish(bulk);
#else
  simt::bulks.push_back(bulk);
#endif
}
inline void meet_group(int group) { simt::wait(simt::groups[group], 128); }
inline void show_tensor_cores() {}
inline void keep_quad(void* p, Quad x) { *(Quad*)p = x; }
inline void give_registers() {}
inline void take_registers() {}
inline void begin_products() {}
namespace simt {
inline float element(unsigned long long operand, int row, int k) {
  const unsigned first = (operand & 0x3fff) << 4, along_sum = (operand >> 16 & 0x3fff) << 4, along_rows = (operand >> 32 & 0x3fff) << 4;
  unsigned short x;
  std::memcpy(&x, shared_memory() + first + row / 8 * along_rows + row % 8 * 16 + k / 8 * along_sum + k % 8 * 2, 2);
  return real(x);
}
inline void make(const Product& p) {  // this thread's
  const int lane = current % 32, warp = current / 32 % 4;
  float rows[2][16];
  for (int half = 0; half < 2; half++)
    for (int k = 0; k < 16; k++) rows[half][k] = element(p.a, warp * 16 + lane / 4 + half * 8, k);
  for (int tile = 0; tile < p.tiles; tile++)
    for (int i = 0; i < 2; i++) {
      float column[16], sums[2] = {};
      for (int k = 0; k < 16; k++) column[k] = element(p.b, tile * 8 + lane % 4 * 2 + i, k);
      for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 16; k++) sums[half] += rows[half][k] * column[k];
        float& to = p.to[4 * tile + 2 * half + i];
        to = p.add ? to + sums[half] : sums[half];
      }
    }
}
}  // namespace simt
template <int TILES>
void multiply_first(float (&d)[TILES][4], unsigned long long a, unsigned long long b, bool add = false) {
  const simt::Product product{&d[0][0], TILES, a, b, add};
#ifdef EARLY
  simt::make(product);
#else
  simt::fibers[simt::current].open_products.push_back(product);
#endif
}
template <int TILES>
void multiply_more(float (&d)[TILES][4], unsigned long long a, unsigned long long b) { multiply_first(d, a, b, true); }
inline void commit_products() {
  auto& f = simt::fibers[simt::current];
  f.product_groups.push_back(std::move(f.open_products));
  f.open_products.clear();
}
template <int LEFT>
void wait_products() {
  while (std::rand() % 4 == 0) simt::pause();  // they take their time
  auto& groups = simt::fibers[simt::current].product_groups;
  for (; (int)groups.size() > LEFT; groups.pop_front())
    for (auto& p : groups.front()) simt::make(p);
  __syncwarp();
}
inline unsigned turned(unsigned x) {
  simt::Lane* warp = simt::publish(&x, 1, nullptr, 0);
  const int lane = simt::current % 32;
  unsigned both = 0;
  for (int k = 0; k < 2; k++) {
    const unsigned pair = warp[2 * ((lane % 4 * 2 + k) * 4 + lane / 8)].a[0];
    both |= (lane / 4 % 2 ? pair >> 16 : pair & 0xffff) << 16 * k;
  }
  return both;
}
inline void meet_neighbour() { simt::wait(simt::neighbours[simt::current / 64], 64); }
inline unsigned bits(float x) { unsigned u; std::memcpy(&u, &x, 4); return u; }
inline void atomicAdd(float* p, float x) { *p += x; }
inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }

inline void copy_async(void* to, const void* from) {
#ifdef EARLY
  std::memcpy(to, from, 16);
#else
  std::memset(to, 0xff, 16);  // NaN until it has arrived
  simt::fibers[simt::current].open.push_back({to, from});
#endif
}
inline void commit_async() {
  auto& f = simt::fibers[simt::current];
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}
template <int LEFT>
void wait_async() {
  auto& groups = simt::fibers[simt::current].groups;
  for (; (int)groups.size() > LEFT; groups.pop_front())
    for (auto& c : groups.front()) std::memcpy(c.to, c.from, 16);
}
inline void load_matrices(unsigned (&a)[4], const void* p) {  // lanes 8 i to 8 i + 7 have the rows of matrix i
  unsigned long long address = (unsigned long long)p;
  unsigned both[2] = {(unsigned)address, (unsigned)(address >> 32)};
  simt::Lane* warp = simt::publish(both, 2, nullptr, 0);
  int lane = simt::current % 32;
  for (int i = 0; i < 4; i++) {
    auto& row = warp[2 * (8 * i + lane / 4)];
    auto from = (const char*)((unsigned long long)row.a[0] | (unsigned long long)row.a[1] << 32);
    std::memcpy(&a[i], from + lane % 4 * 4, 4);
  }
}
inline void load_turned(unsigned (&a)[4], const void* p) {
  unsigned long long address = (unsigned long long)p;
  unsigned both[2] = {(unsigned)address, (unsigned)(address >> 32)};
  simt::Lane* warp = simt::publish(both, 2, nullptr, 0);
  int lane = simt::current % 32;
  for (int i = 0; i < 4; i++) {
    unsigned short pair[2];
    for (int k = 0; k < 2; k++) {
      auto& row = warp[2 * (8 * i + lane % 4 * 2 + k)];
      auto from = (const unsigned short*)((unsigned long long)row.a[0] | (unsigned long long)row.a[1] << 32);
      pair[k] = from[lane / 4];
    }
    a[i] = pair[0] | (unsigned)pair[1] << 16;
  }
}
inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  unsigned b[2] = {b0, b1};
  simt::Lane* warp = simt::publish(a, 4, b, 2);
  int lane = simt::current % 32;
  for (int out = 0; out < 4; out++) {
    int row = lane / 4 + out / 2 * 8, column = lane % 4 * 2 + out % 2;
    for (int k = 0; k < 16; k++) {
      unsigned x = warp[2 * (row % 8 * 4 + k % 8 / 2)].a[row / 8 + k / 8 * 2];
      unsigned y = warp[2 * (column * 4 + k % 8 / 2)].b[k / 8];
      c[out] += simt::real(k % 2 ? x >> 16 : x & 0xffff) * simt::real(k % 2 ? y >> 16 : y & 0xffff);
    }
  }
}
inline float exchange(float x, int distance) {
  unsigned u;
  std::memcpy(&u, &x, 4);
  simt::Lane* warp = simt::publish(&u, 1, nullptr, 0);
  return __uint_as_float(warp[2 * (simt::current % 32 ^ distance)].a[0]);
}
inline unsigned from_lane(unsigned x, int lane) { return simt::publish(&x, 1, nullptr, 0)[2 * lane].a[0]; }
inline unsigned round1(float x) {  // to the nearest, ties to even
  unsigned u;
  std::memcpy(&u, &x, 4);
  return std::isnan(x) ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}
inline unsigned round2(float low, float high) { return round1(low) | round1(high) << 16; }
inline unsigned halves(float low, float high) {
  float largest = 65504.f;  // NaN stays
  _Float16 pair[2] = {(_Float16)(low > largest ? largest : low < -largest ? -largest : low),
                      (_Float16)(high > largest ? largest : high < -largest ? -largest : high)};
  unsigned both;
  std::memcpy(&both, pair, 4);
  return both;
}
inline float2 from_halves(unsigned both) {
  _Float16 pair[2];
  std::memcpy(pair, &both, 4);
  return {(float)pair[0], (float)pair[1]};
}
inline float reciprocal_root(float x) { return 1 / std::sqrt(x); }
inline float exponential(float x) { return std::exp(x); }
inline float quotient(float a, float b) { return a / b; }
inline float tangent(float x) { return std::tanh(x); }

namespace simt {
static void (*entry)();
inline void begin() {
  entry();
  fibers[current].done = true, living--;
  pause();
}
template <class... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) { kernel(*(A*)args[I]...); }

// as cuLaunchKernel: `args` are addresses of the arguments
template <class... A>
void launch(void (*kernel)(A...), int grid, int block_threads, int bytes, void** args) {
  static void (*the_kernel)(A...);
  static void** the_args;
  the_kernel = kernel, the_args = args;
  entry = [] { call(the_kernel, the_args, std::index_sequence_for<A...>{}); };
  threads = block_threads;
#ifdef SEED
  std::srand(SEED);
#endif
  for (first_block = 0; first_block < grid; first_block += CLUSTER) {
    if (bytes > (int)sizeof(memory[0])) std::abort();
    std::memset(memory, 0xff, sizeof(memory));  // NaN
    fibers = std::vector<Fiber>(threads * CLUSTER);
    all = Barrier{};
    std::fill(blocks, blocks + CLUSTER, Barrier{});
    std::fill(warps, warps + 64, Barrier{}), std::fill(neighbours, neighbours + 32, Barrier{});
    std::fill(groups, groups + 16, Barrier{}), phases.clear();
    warps_of_block = threads / 32;
    living = (int)fibers.size();
    for (auto& f : fibers) {
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
      f.context.uc_link = nullptr, f.done = false, f.exchanges = 0;
      makecontext(&f.context, begin, 0);
    }
    const int count = (int)fibers.size() / 32;
    int slow_warp = 0, slow_block = 0;
    for (int turn = 0; living; turn++) {  // warps in any order; for a while one, and those of a block, hardly ever
      if (turn % 256 == 0) slow_warp = std::rand() % count, slow_block = std::rand() % CLUSTER;
      for (int i = 0; i < count; i++) {
        const int warp = std::rand() % count;
        const bool slow = warp == slow_warp || (CLUSTER > 1 && warp * 32 / threads == slow_block);
        if (slow && std::rand() % (warp == slow_warp ? 256 : 16)) continue;
        for (current = warp * 32; current < warp * 32 + 32; current++)
          if (!fibers[current].done) go_on(fibers[current]);
      }
      deliver();
    }
    if (!messages.empty() || !bulks.empty()) std::abort();  // to a program that has left
  }
}
}  // namespace simt
