// A step of a DNC's memory. Where `resets` an episode may begin before this step (`begins`) and before the next one
// (`next_begins`). `stride`, if there is one: what was read goes to rows of so many features too, for the next step.
extern "C" __global__ void __launch_bounds__(THREADS) dnc_forward(
    const float* raw,                                                          // [B, RAW]
    const float* old_memory, const float* old_reads, const float* old_writes,  // [B, N, W], [B, R, N], [B, N]
    const float* old_link, const float* old_precedence, const float* old_usage,  // [B, N, N], [B, N], [B, N]
    float* reads,                                                              // [B, R, W]
    float* memory, float* read_weights, float* write_weights, float* link, float* precedence, float* usage,
    const unsigned char* begins, const unsigned char* next_begins, float* next_reads, int resets, int stride) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, b = blockIdx.x;
  const bool anew = resets && begins[b], next_anew = resets && stride && next_begins[b];
  Step s;
  float *const to = s.take(R * N), *const from = s.take(WARPS * R * N);  // forward and backward reads; new words in place
  s.begin(raw + (long)b * RAW, old_memory + (long)b * N * W, old_reads + (long)b * R * N, old_writes + (long)b * N,
          old_precedence + (long)b * N, old_usage + (long)b * N, anew);
  float total = 0.f;
  for (int j = 0; j < N; j++) total += s.write_weights[j];
  for (int i = thread; i < N; i += THREADS) {
    write_weights[(long)b * N + i] = s.write_weights[i], usage[(long)b * N + i] = s.usage[i];
    precedence[(long)b * N + i] = (1.f - total) * s.precedence[i] + s.write_weights[i];
  }

  // the link, and what it makes of the last reads
  float column[R][NL] = {};
  for (int i = warp; i < N; i += WARPS) {
    float row[R] = {};
#pragma unroll
    for (int k = 0; k < NL; k++) {
      const int j = lane + 32 * k;
      if (j >= N) continue;
      const long at = ((long)b * N + i) * N + j;
      const float x = s.new_link(i, j, anew ? 0.f : old_link[at]);
      link[at] = x;
#pragma unroll
      for (int r = 0; r < R; r++) row[r] += x * s.read_weights[r * N + j], column[r][k] += x * s.read_weights[r * N + i];
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      row[r] = warp_sum(row[r]);
      if (lane == 0) to[r * N + i] = row[r];
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int k = 0; k < NL; k++)
      if (lane + 32 * k < N) from[(warp * R + r) * N + lane + 32 * k] = column[r][k];

  // the words, and how near they are to the keys of the reads
  for (int i = warp; i < N; i += WARPS) {
    float squares = 0.f, dots[R] = {};
    for (int w = lane; w < W; w += 32) {
      const float x = s.new_word(i, w);
      memory[((long)b * N + i) * W + w] = x, s.memory[i * W + w] = x;
      squares += x * x;
#pragma unroll
      for (int r = 0; r < R; r++) dots[r] += x * s.raw[READ_KEYS + r * W + w];
    }
    const float norm = sqrtf(warp_sum(squares) + EPSILON);
#pragma unroll
    for (int r = 0; r < R; r++) {
      dots[r] = warp_sum(dots[r]);
      if (lane == 0) s.read_cosines[r * N + i] = dots[r] / s.denominator(1 + r, norm);
    }
  }
  __syncthreads();
  if (warp < R) s.softmax(s.read_content + warp * N, s.read_cosines + warp * N, s.numbers[3 + warp]);
  __syncthreads();
  for (int i = thread; i < R * N; i += THREADS) {
    const int r = i / N;
    float back = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) back += from[w * R * N + i];
    const float x = s.mode[3 * r] * back + s.mode[3 * r + 1] * to[i] + s.mode[3 * r + 2] * s.read_content[i];
    s.read_weights[i] = x, read_weights[(long)b * R * N + i] = x;
  }
  __syncthreads();
  for (int i = thread; i < R * W; i += THREADS) {
    const int r = i / W, w = i % W;
    float x = 0.f;
    for (int j = 0; j < N; j++) x += s.read_weights[r * N + j] * s.memory[j * W + w];
    reads[(long)b * R * W + i] = x;
    if (stride) next_reads[(long)b * stride + i] = next_anew ? 0.f : x;
  }
}
