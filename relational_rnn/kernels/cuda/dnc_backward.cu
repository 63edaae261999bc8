// The backward pass of a step of a DNC's memory, from the state before it; what the step computed is computed again.
// Resets and stride as in the forward pass: `g_next_reads` is the gradient of what the next step was given of the reads.

// Of a softmax of cosines over slots, by one warp: gradients of the shares become those of dot products and word norms;
// leaves that of the strength and of the key's norm.
__device__ __forceinline__ void content_backward(float* d_dots, float* d_norms, const float* d_shares, float factor,
                                                 const float* shares, const float* cosines, const float* norms, float key_norm,
                                                 float strength, float& d_strength, float& d_key_norm) {
  const int lane = threadIdx.x % 32;
  float inner = 0.f;
  for (int i = lane; i < N; i += 32) inner += shares[i] * d_shares[i] * factor;
  inner = warp_sum(inner);
  d_strength = 0.f, d_key_norm = 0.f;
  for (int i = lane; i < N; i += 32) {
    const float d = shares[i] * (d_shares[i] * factor - inner), below = key_norm * norms[i] + EPSILON;
    d_strength += d * cosines[i];
    const float d_cosine = d * strength, d_below = -d_cosine * cosines[i] / below;
    d_dots[i] = d_cosine / below, d_norms[i] = d_below * key_norm;
    d_key_norm += d_below * norms[i];
  }
  d_strength = warp_sum(d_strength), d_key_norm = warp_sum(d_key_norm);
}

extern "C" __global__ void __launch_bounds__(THREADS) dnc_backward(
    const float* raw, const float* old_memory, const float* old_reads, const float* old_writes, const float* old_link,
    const float* old_precedence, const float* old_usage,
    const float* new_reads,  // [B, R, N], the read weights that the step made
    const float* g_reads, const float* g_memory, const float* g_read_weights, const float* g_write_weights,
    const float* g_link, const float* g_precedence, const float* g_usage,  // gradients of what the step made
    float* d_raw, float* d_memory, float* d_read_weights, float* d_link, float* d_precedence, float* d_usage,
    const unsigned char* begins, const unsigned char* next_begins, const float* g_next_reads, int resets, int stride) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, b = blockIdx.x;
  const bool anew = resets && begins[b], next_counts = stride && !(resets && next_begins[b]);
  Step s;
  float *const said = s.take(R * W), *const made = s.take(R * N);  // gradients of what was read; the new read weights
  float *const d_made = s.take(R * N), *const d_old = s.take(R * N);
  float *const d_dots = s.take(R * N), *const d_norms = s.take(R * N), *const row_sums = s.take(N), *const d_writes = s.take(N);
  float *const write_dots = s.take(N), *const write_norms = s.take(N), *const d_logs = s.take(N), *const d_content = s.take(N);
  float *const d_keys = s.take(2 * (1 + R)), *const d_mode = s.take(2 * WARPS * R), *const d_words = s.take(N * W);
  constexpr int COLUMNS = (R + 2) * N > (R + 3) * W ? (R + 2) * N : (R + 3) * W;
  float* const columns = s.take(WARPS * COLUMNS);
  s.begin(raw + (long)b * RAW, old_memory + (long)b * N * W, old_reads + (long)b * R * N, old_writes + (long)b * N,
          old_precedence + (long)b * N, old_usage + (long)b * N, anew);
  for (int i = thread; i < R * W; i += THREADS)
    said[i] = g_reads[(long)b * R * W + i] + (next_counts ? g_next_reads[(long)b * stride + i] : 0.f);
  for (int i = thread; i < R * N; i += THREADS) made[i] = new_reads[(long)b * R * N + i];
  __syncthreads();

  // words: norms, cosines, and the gradient of the weights they were read with
  for (int i = warp; i < N; i += WARPS) {
    float squares = 0.f, dots[R] = {}, given[R] = {};
    for (int w = lane; w < W; w += 32) {
      const float x = s.new_word(i, w);
      squares += x * x;
#pragma unroll
      for (int r = 0; r < R; r++) dots[r] += x * s.raw[READ_KEYS + r * W + w], given[r] += x * said[r * W + w];
    }
    const float norm = sqrtf(warp_sum(squares) + EPSILON);
    if (lane == 0) s.new_norms[i] = norm;
#pragma unroll
    for (int r = 0; r < R; r++) {
      dots[r] = warp_sum(dots[r]), given[r] = warp_sum(given[r]);
      if (lane == 0) {
        s.read_cosines[r * N + i] = dots[r] / s.denominator(1 + r, norm);
        d_made[r * N + i] = given[r] + g_read_weights[((long)b * R + r) * N + i];
      }
    }
  }
  __syncthreads();

  // attention to words read: a warp to a head
  if (warp < R) {
    const int r = warp;
    float d_strength, d_key_norm, d_share = 0.f;
    float* const shares = s.read_content + r * N;
    s.softmax(shares, s.read_cosines + r * N, s.numbers[3 + r]);
    __syncwarp();
    for (int i = lane; i < N; i += 32) d_share += shares[i] * d_made[r * N + i];
    d_share = warp_sum(d_share);
    content_backward(d_dots + r * N, d_norms + r * N, d_made + r * N, s.mode[3 * r + 2], shares, s.read_cosines + r * N,
                     s.new_norms, s.key_norms[1 + r], s.numbers[3 + r], d_strength, d_key_norm);
    if (lane == 0) {
      d_keys[1 + r] = d_key_norm;
      d_raw[(long)b * RAW + READ_STRENGTHS + r] = d_strength * sigmoid(s.raw[READ_STRENGTHS + r]);
      d_keys[1 + R + 1 + r] = d_share;  // of the mode "content"
    }
  }

  // the link: gradients of the last read weights, of the write weights, of the precedence, and its own
  float d_back[R] = {}, d_to[R] = {};  // of the modes, summed over this warp's rows
  float column_reads[R][NL] = {}, column_writes[NL] = {}, column_precedence[NL] = {};
  for (int i = warp; i < N; i += WARPS) {
    float back[R] = {}, to[R] = {}, row = 0.f;
#pragma unroll
    for (int k = 0; k < NL; k++) {
      const int j = lane + 32 * k;
      if (j >= N) continue;
      const long at = ((long)b * N + i) * N + j;
      const float old = anew ? 0.f : old_link[at], x = s.new_link(i, j, old);
      float d = g_link[at];
#pragma unroll
      for (int r = 0; r < R; r++) {
        const float made_i = d_made[r * N + i], made_j = d_made[r * N + j];
        back[r] += x * made_j, to[r] += x * s.read_weights[r * N + j];
        column_reads[r][k] += s.mode[3 * r + 1] * made_i * x;
        d += s.mode[3 * r] * made_j * s.read_weights[r * N + i] + s.mode[3 * r + 1] * made_i * s.read_weights[r * N + j];
      }
      if (i == j) d = 0.f;
      d_link[at] = anew ? 0.f : (1.f - s.write_weights[i] - s.write_weights[j]) * d;
      row += d * (s.precedence[j] - old);
      column_writes[k] -= d * old, column_precedence[k] += s.write_weights[i] * d;
    }
    row = warp_sum(row);
    if (lane == 0) row_sums[i] = row;
#pragma unroll
    for (int r = 0; r < R; r++) {
      back[r] = warp_sum(back[r]), to[r] = warp_sum(to[r]);
      d_back[r] += s.read_weights[r * N + i] * back[r], d_to[r] += d_made[r * N + i] * to[r];
      if (lane == 0) d_old[r * N + i] = s.mode[3 * r] * back[r];
    }
  }
  float* const own = columns + warp * COLUMNS;
#pragma unroll
  for (int k = 0; k < NL; k++) {
    const int j = lane + 32 * k;
    if (j >= N) continue;
#pragma unroll
    for (int r = 0; r < R; r++) own[r * N + j] = column_reads[r][k];
    own[R * N + j] = column_writes[k], own[(R + 1) * N + j] = column_precedence[k];
  }
  if (lane == 0)
#pragma unroll
    for (int r = 0; r < R; r++) d_mode[warp * R + r] = d_back[r], d_mode[(WARPS + warp) * R + r] = d_to[r];
  __syncthreads();

  float total = 0.f, carried = 0.f;  // of write weights, and of what the precedence keeps
  for (int j = 0; j < N; j++) total += s.write_weights[j], carried += g_precedence[(long)b * N + j] * s.precedence[j];
  for (int i = thread; i < (R + 2) * N; i += THREADS) {
    float x = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) x += columns[w * COLUMNS + i];
    const int j = i % N;
    const long at = (long)b * N + j;
    if (i < R * N) d_old[i] += x;
    else if (i < (R + 1) * N) d_writes[j] = x + row_sums[j] + g_precedence[at] - carried + g_write_weights[at];
    else d_precedence[at] = anew ? 0.f : x + (1.f - total) * g_precedence[at];
  }
  if (thread < R) {
    float d[3] = {0.f, 0.f, d_keys[1 + R + 1 + thread]}, inner = 0.f;
    for (int w = 0; w < WARPS; w++) d[0] += d_mode[w * R + thread], d[1] += d_mode[(WARPS + w) * R + thread];
    for (int i = 0; i < 3; i++) inner += s.mode[3 * thread + i] * d[i];
    for (int i = 0; i < 3; i++) d_raw[(long)b * RAW + MODE + 3 * thread + i] = s.mode[3 * thread + i] * (d[i] - inner);
  }
  __syncthreads();

  // words: what was erased and written
  float d_vector[WL] = {}, d_erase[WL] = {}, d_read_keys[R][WL] = {};
  for (int i = warp; i < N; i += WARPS) {
    float row = 0.f;
#pragma unroll
    for (int k = 0; k < WL; k++) {
      const int w = lane + 32 * k;
      if (w >= W) continue;
      const float old = s.memory[i * W + w], x = s.new_word(i, w);
      float d = g_memory[((long)b * N + i) * W + w], norms = 0.f;
#pragma unroll
      for (int r = 0; r < R; r++) {
        d += made[r * N + i] * said[r * W + w] + d_dots[r * N + i] * s.raw[READ_KEYS + r * W + w];
        norms += d_norms[r * N + i];
        d_read_keys[r][k] += d_dots[r * N + i] * x;
      }
      d += norms * x / s.new_norms[i];
      row += d * (s.raw[VECTOR + w] - old * s.erase[w]);
      d_vector[k] += d * s.write_weights[i], d_erase[k] -= d * old * s.write_weights[i];
      d_words[i * W + w] = d * (1.f - s.write_weights[i] * s.erase[w]);
    }
    row = warp_sum(row);
    if (lane == 0) d_writes[i] += row;
  }
#pragma unroll
  for (int k = 0; k < WL; k++) {
    const int w = lane + 32 * k;
    if (w >= W) continue;
    own[w] = d_vector[k], own[W + w] = d_erase[k];
#pragma unroll
    for (int r = 0; r < R; r++) own[(3 + r) * W + w] = d_read_keys[r][k];
  }
  __syncthreads();

  // write weights: gates, content, and who is freer than whom
  const float allocation = s.numbers[0], write = s.numbers[1];
  for (int i = thread; i < N; i += THREADS) {
    d_content[i] = d_writes[i] * write * (1.f - allocation);
    d_logs[i] = d_writes[i] * write * allocation * s.allocated[i];  // of the sum of logarithms
  }
  __syncthreads();
  if (warp == 0) {
    float d_strength, d_key_norm, d_write = 0.f, d_allocation = 0.f;
    content_backward(write_dots, write_norms, d_content, 1.f, s.content, s.write_cosines, s.word_norms, s.key_norms[0],
                     s.numbers[2], d_strength, d_key_norm);
    for (int i = lane; i < N; i += 32) {
      d_write += d_writes[i] * (allocation * s.allocated[i] + (1.f - allocation) * s.content[i]);
      d_allocation += d_writes[i] * write * (s.allocated[i] - s.content[i]);
    }
    d_write = warp_sum(d_write), d_allocation = warp_sum(d_allocation);
    if (lane == 0) {
      d_keys[0] = d_key_norm;
      d_raw[(long)b * RAW + WRITE_STRENGTH] = d_strength * sigmoid(s.raw[WRITE_STRENGTH]);
      d_raw[(long)b * RAW + WRITE] = d_write * write * (1.f - write);
      d_raw[(long)b * RAW + ALLOCATE] = d_allocation * allocation * (1.f - allocation);
    }
  }
  float* const d_retained = row_sums;
  for (int j = thread - 32; j >= 0 && j < N; j += THREADS - 32) {
    const long at = (long)b * N + j;
    const float slope = s.usage[j] >= 0.f ? 1.f - EPSILON : 0.f;
    float d = 0.f;
    for (int i = 0; i < N; i++) d += s.before(i, j) ? d_logs[i] : 0.f;
    d = g_usage[at] + slope * (d / s.used(j) - d_writes[j] * write * allocation * s.products[j]);
    d_usage[at] = anew ? 0.f : d * (1.f - old_writes[at]) * s.retained(j, -1);
    d_retained[j] = anew ? 0.f : d * (old_usage[at] + (1.f - old_usage[at]) * old_writes[at]);
  }
  __syncthreads();
  for (int i = thread; i < R * N; i += THREADS) {
    const int r = i / N, j = i % N;
    d_read_weights[(long)b * R * N + i] = anew ? 0.f : d_old[i] - d_retained[j] * s.free_gate[r] * s.retained(j, r);
  }
  if (warp < R) {
    float d = 0.f;
    for (int j = lane; j < N; j += 32) d -= d_retained[j] * s.read_weights[warp * N + j] * s.retained(j, warp);
    d = warp_sum(d);
    const float gate = s.free_gate[warp];
    if (lane == 0) d_raw[(long)b * RAW + FREE + warp] = d * gate * (1.f - gate);
  }

  // the words of before, and all keys
  float d_write_key[WL] = {};
  for (int i = warp; i < N; i += WARPS)
#pragma unroll
    for (int k = 0; k < WL; k++) {
      const int w = lane + 32 * k;
      if (w >= W) continue;
      const float old = s.memory[i * W + w];
      const float d = d_words[i * W + w] + write_dots[i] * s.raw[WRITE_KEY + w] + write_norms[i] * old / s.word_norms[i];
      d_memory[((long)b * N + i) * W + w] = anew ? 0.f : d;
      d_write_key[k] += write_dots[i] * old;
    }
#pragma unroll
  for (int k = 0; k < WL; k++)
    if (lane + 32 * k < W) own[2 * W + lane + 32 * k] = d_write_key[k];
  __syncthreads();
  for (int i = thread; i < (3 + R) * W; i += THREADS) {
    const int part = i / W, w = i % W;  // vector, erase, key of the write, keys of the reads
    float x = 0.f;
#pragma unroll
    for (int other = 0; other < WARPS; other++) x += columns[other * COLUMNS + i];
    const int to = part == 0 ? VECTOR : part == 1 ? ERASE : part == 2 ? WRITE_KEY : READ_KEYS + (part - 3) * W;
    if (part == 1) x *= s.erase[w] * (1.f - s.erase[w]);
    if (part >= 2) x += d_keys[part - 2] * s.raw[to + w] / s.key_norms[part - 2];
    d_raw[(long)b * RAW + to + w] = x;
  }
}
