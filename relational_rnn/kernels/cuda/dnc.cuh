// What a step of a DNC's memory and its backward pass share: a program to a sample. Formulas and names as in cores/dnc_memory.py,
// with one write head; kernels/dnc.py gives the sizes N slots, W features of a word, R reads, and the order of `raw`, what
// the controller says. A warp takes rows of the memory and of the link, its lanes the columns, so each is read once.

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int NL = (N + 31) / 32, WL = (W + 31) / 32;  // columns of a lane
constexpr float EPSILON = 1e-6f;
// where each part of `raw` begins
constexpr int VECTOR = 0, ERASE = W, FREE = 2 * W, ALLOCATE = FREE + R, WRITE = ALLOCATE + 1, MODE = WRITE + 1;
constexpr int WRITE_KEY = MODE + 3 * R, WRITE_STRENGTH = WRITE_KEY + W, READ_KEYS = WRITE_STRENGTH + 1;
constexpr int READ_STRENGTHS = READ_KEYS + R * W, RAW = READ_STRENGTHS + R;
static_assert(N <= 128 && W <= 128 && R <= WARPS - 1, "");

#ifndef SIMT
__device__ __forceinline__ char* shared_memory() {
  extern __shared__ __align__(16) char shared[];
  return shared;
}
__device__ __forceinline__ float exchange(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
#endif

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += exchange(x, lanes);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, exchange(x, lanes));
  return x;
}
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

// What both directions have in shared memory. Vectors over slots are [N], one after the other.
struct Step {
  float* next;  // the first place that is still free
  float *raw, *read_weights, *usage, *unused, *logs, *products, *allocated, *content, *write_weights, *precedence;
  float *word_norms, *write_cosines, *new_norms, *read_cosines, *read_content, *key_norms;
  float *free_gate, *mode, *erase, *numbers;  // numbers: allocation gate, write gate, write strength, read strengths
  float* memory;                              // [N, W], of before

  __device__ __forceinline__ float* take(int count) {
    float* const p = next;
    next += count;
    return p;
  }
  __device__ __forceinline__ Step() : next((float*)shared_memory()) {
    raw = take(RAW), read_weights = take(R * N), usage = take(N), unused = take(N), logs = take(N);
    products = take(N), allocated = take(N);
    content = take(N), write_weights = take(N), precedence = take(N), word_norms = take(N), write_cosines = take(N);
    new_norms = take(N), read_cosines = take(R * N), read_content = take(R * N), key_norms = take(1 + R);
    free_gate = take(R), mode = take(3 * R), erase = take(W), numbers = take(3 + R), memory = take(N * W);
  }

  // The controller's words, and the state of before, `old_usage` etc. of this sample; zeros if an episode begins `anew`.
  __device__ void begin(const float* from, const float* old_memory, const float* old_reads, const float* old_writes,
                        const float* old_precedence, const float* old_usage, bool anew) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    for (int i = thread; i < RAW; i += THREADS) raw[i] = from[i];
    for (int i = thread; i < R * N; i += THREADS) read_weights[i] = anew ? 0.f : old_reads[i];
    for (int i = thread; i < N * W; i += THREADS) memory[i] = anew ? 0.f : old_memory[i];
    for (int i = thread; i < N; i += THREADS) precedence[i] = anew ? 0.f : old_precedence[i];
    __syncthreads();
    for (int i = thread; i < W; i += THREADS) erase[i] = sigmoid(raw[ERASE + i]);
    if (thread < R) {
      free_gate[thread] = sigmoid(raw[FREE + thread]), numbers[3 + thread] = softplus(raw[READ_STRENGTHS + thread]);
      const float* const x = raw + MODE + 3 * thread;
      const float most = fmaxf(x[0], fmaxf(x[1], x[2]));
      const float e[3] = {expf(x[0] - most), expf(x[1] - most), expf(x[2] - most)}, sum = e[0] + e[1] + e[2];
      for (int i = 0; i < 3; i++) mode[3 * thread + i] = e[i] / sum;
    }
    if (thread == 0)
      numbers[0] = sigmoid(raw[ALLOCATE]), numbers[1] = sigmoid(raw[WRITE]), numbers[2] = softplus(raw[WRITE_STRENGTH]);
    for (int head = warp; head < 1 + R; head += WARPS) {  // the keys' norms
      const float* const key = head == 0 ? raw + WRITE_KEY : raw + READ_KEYS + (head - 1) * W;
      float squares = 0.f;
      for (int w = lane; w < W; w += 32) squares += key[w] * key[w];
      squares = warp_sum(squares);
      if (lane == 0) key_norms[head] = sqrtf(squares + EPSILON);
    }
    __syncthreads();
    for (int i = thread; i < N; i += THREADS) {
      usage[i] = anew ? 0.f : (old_usage[i] + (1.f - old_usage[i]) * old_writes[i]) * retained(i, -1);
      unused[i] = 1.f - (EPSILON + (1.f - EPSILON) * fmaxf(usage[i], 0.f)), logs[i] = logf(used(i));
    }
    for (int i = warp; i < N; i += WARPS) {  // each word against the key of the write
      float squares = 0.f, dot = 0.f;
      for (int w = lane; w < W; w += 32) {
        const float x = memory[i * W + w];
        squares += x * x, dot += x * raw[WRITE_KEY + w];
      }
      squares = warp_sum(squares), dot = warp_sum(dot);
      if (lane == 0) word_norms[i] = sqrtf(squares + EPSILON), write_cosines[i] = dot / denominator(0, word_norms[i]);
    }
    __syncthreads();
    if (warp == 0) softmax(content, write_cosines, numbers[2]);
    for (int i = thread - 32; i >= 0 && i < N; i += THREADS - 32) {
      float sum = 0.f;
      for (int j = 0; j < N; j++) sum += before(i, j) ? logs[j] : 0.f;
      products[i] = expf(sum), allocated[i] = unused[i] * products[i];
    }
    __syncthreads();
    for (int i = thread; i < N; i += THREADS)
      write_weights[i] = numbers[1] * (numbers[0] * allocated[i] + (1.f - numbers[0]) * content[i]);
    __syncthreads();
  }
  // whether slot j is freer than slot i
  __device__ __forceinline__ bool before(int i, int j) const {
    return unused[j] > unused[i] || (unused[j] == unused[i] && j < i);
  }
  __device__ __forceinline__ float used(int i) const { return 1.f - unused[i]; }  // rounded as the original does
  // what the reads leave of a slot's usage, one of them left out
  __device__ __forceinline__ float retained(int i, int without) const {
    float x = 1.f;
#pragma unroll
    for (int r = 0; r < R; r++)
      if (r != without) x *= 1.f - free_gate[r] * read_weights[r * N + i];
    return x;
  }
  __device__ __forceinline__ float denominator(int head, float norm) const { return key_norms[head] * norm + EPSILON; }
  // over slots, by one warp
  __device__ __forceinline__ void softmax(float* to, const float* cosines, float strength) const {
    const int lane = threadIdx.x % 32;
    float most = -1e30f, sum = 0.f, x[NL];
#pragma unroll
    for (int k = 0; k < NL; k++) {
      x[k] = lane + 32 * k < N ? cosines[lane + 32 * k] * strength : -1e30f;
      most = fmaxf(most, x[k]);
    }
    most = warp_max(most);
#pragma unroll
    for (int k = 0; k < NL; k++) x[k] = lane + 32 * k < N ? expf(x[k] - most) : 0.f, sum += x[k];
    sum = warp_sum(sum);
#pragma unroll
    for (int k = 0; k < NL; k++)
      if (lane + 32 * k < N) to[lane + 32 * k] = x[k] / sum;
  }
  __device__ __forceinline__ float new_word(int i, int w) const {
    return memory[i * W + w] * (1.f - write_weights[i] * erase[w]) + write_weights[i] * raw[VECTOR + w];
  }
  __device__ __forceinline__ float new_link(int i, int j, float old) const {
    return i == j ? 0.f : (1.f - write_weights[i] - write_weights[j]) * old + write_weights[i] * precedence[j];
  }
};
