// Attention and its backward pass on tensor cores: a warp takes one head of 16 rows, which are whole samples, as queries
// against the same rows and their samples' inputs as keys. Between rows of different samples the share is zero.

constexpr int INPUTS = 16 / N;                   // samples of 16 rows
constexpr int KEYS = INPUTS > 8 ? 4 : 3;         // tiles of 8 keys: 16 rows, then the inputs
constexpr int SUMS = V / 16;                     // steps of a sum over a head's features

// A head of 16 rows as operands of small products: in a tile ...
struct TileRows {
  char* tile;
  int row, column;

  __device__ __forceinline__ void as_left(Fragment& a, int sum) const { left(a, tile, row, column + sum * 16); }
  __device__ __forceinline__ void as_right(Fragment& b, int sum) const { right(b, tile, row, column + sum * 16); }
  __device__ __forceinline__ void as_turned(Fragment& b, int sum) const { right_turned(b, tile, row, column + sum * 16); }
};

struct Head {          // where a warp is
  int row, head;       // its first row in the tiles
  int valid;           // rows of the tiles that there are
  const bf16* inputs;  // [.., Q], that of the tiles' first sample
  const float* vectors;

  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  __device__ __forceinline__ int column() const { return head * V; }
  __device__ __forceinline__ TileRows of(char* tile) const { return {tile, row, column()}; }
  // of what a thread makes: rows, columns of a tile, and, as columns, rows of queries
  __device__ __forceinline__ int row_of(int half) const { return row + lane() / 4 + 8 * half; }
  __device__ __forceinline__ int column_of(int sum, int tile) const { return column() + sum * 16 + tile * 8 + lane() % 4 * 2; }
  __device__ __forceinline__ int query(int tile, int i) const { return row + tile * 8 + lane() % 4 * 2 + i; }
  // position of this thread's features, of one of a sum's two tiles, among the Q of a row; part 0 queries, 1 keys, 2 values
  __device__ __forceinline__ int feature(int part, int sum, int tile) const {
    const int t = 2 * sum + tile, first = head * 3 * V + part * V;
    return first + (WIDE ? t / 4 * 32 + lane() % 4 * 8 + t % 4 * 2 : t * 8 + lane() % 4 * 2);
  }
  // whether a row may attend to a key: the columns of KEYS tiles
  static __device__ __forceinline__ bool allowed(int row, int key) {
    return key < 16 ? row / N == key / N : row / N == key - 16;
  }
  // Two neighbouring values of a row of queries, keys or values, weighted (queries also shifted) as the norm does.
  __device__ __forceinline__ unsigned weighted(const bf16* from, int part, int feature, bool there, float scale) const {
    if (!there) return 0u;
    const unsigned both = *(const unsigned*)(from + feature);
    const float2 weight = *(const float2*)(vectors + QKV_WEIGHT + feature);
    float x = low(both) * weight.x, y = high(both) * weight.y;
    if (part == 0) {
      const float2 shift = *(const float2*)(vectors + QKV_SHIFT + feature);
      x += shift.x, y += shift.y;
    }
    return round2(x * scale, y * scale);
  }
  // The 16 rows' own, out of [.., Q], as the left operand of every step of a sum.
  __device__ __forceinline__ void rows(Fragment (&x)[SUMS], const bf16* qkv, int part, float scale) const {
#pragma unroll
    for (int sum = 0; sum < SUMS; sum++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = row + lane() / 4 + i % 2 * 8;
        x[sum][i] = weighted(qkv + (long)r * Q, part, feature(part, sum, i / 2), r < valid, scale);
      }
  }
  // The inputs', a row for each sample, likewise; elements 0 and 2 (and, of more than 8 inputs, 1 and 3) are also a right
  // operand.
  __device__ __forceinline__ void inputs_of(Fragment (&x)[SUMS], int part) const {
#pragma unroll
    for (int sum = 0; sum < SUMS; sum++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int sample = lane() / 4 + i % 2 * 8;
        const bool there = i % 2 * 8 < INPUTS && sample < INPUTS && row + sample * N < valid;
        x[sum][i] = weighted(inputs + (long)(row / N + sample) * Q, part, feature(part, sum, i / 2), there, 1.f);
      }
  }
  // The logarithms of the softmax's sums, [.., HEADS], of the two rows of a thread, and of its four as columns.
  __device__ __forceinline__ float total_of(const float* total, int r) const {
    return row + r < valid ? total[(row + r) * HEADS + head] : 0.f;
  }
  __device__ __forceinline__ void totals_of_rows(float (&x)[2], const float* total) const {
    x[0] = total_of(total, lane() / 4), x[1] = total_of(total, lane() / 4 + 8);
  }
  __device__ __forceinline__ void totals_of_columns(float (&x)[2][2], const float* total) const {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i / 2][i % 2] = total_of(total, i / 2 * 8 + lane() % 4 * 2 + i % 2);
  }
  // Where the gradient of a sample's input goes: of what keys_backward makes; behind the first sample's of the tiles.
  __device__ __forceinline__ long input_at(int half, int part, int sum, int tile) const {
    return (long)(row / N + lane() / 4 + 8 * half) * Q + feature(part, sum, tile);
  }
  // Of the inputs, what belongs to the sample of one of a thread's two rows: two columns of a tile of 8.
  __device__ __forceinline__ float2 own(const Fragment& x, int tile, int half) const {
    const int sample = (lane() / 4 + half * 8) / N, from = sample % 8 * 4 + lane() % 4;
    unsigned both = from_lane(x[2 * tile], from);
    if constexpr (INPUTS > 8) {
      const unsigned other = from_lane(x[2 * tile + 1], from);
      if (sample >= 8) both = other;
    }
    return make_float2(low(both), high(both));
  }
};

typedef float Shares[KEYS][4];  // rows lane / 4 and 8 behind it, keys lane % 4 * 2 and 1 behind it

template <class Act>
__device__ __forceinline__ void each_share(Shares& shares, Act act) {  // act(half, key, share)
#pragma unroll
  for (int j = 0; j < KEYS; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) act(k / 2, j * 8 + threadIdx.x % 4 * 2 + k % 2, shares[j][k]);
}
__device__ __forceinline__ float quad_sum(float x) {  // over the lanes that hold the same row
  x += exchange(x, 1);
  return x + exchange(x, 2);
}
// products of the rows `a` with 16 rows `b` and with the inputs
__device__ __forceinline__ void add_products(Shares& shares, const Fragment& a, const Fragment& b, const Fragment& x) {
  multiply_add(shares[0], a, b[0], b[1]);
  multiply_add(shares[1], a, b[2], b[3]);
  multiply_add(shares[2], a, x[0], x[2]);
  if constexpr (KEYS > 3) multiply_add(shares[3], a, x[1], x[3]);
}
// 16 features of the sum of 16 rows `b`, turned, and the row's own input, each times its share: rows, tiles of 8 columns
__device__ __forceinline__ void weighted_sum(float (&out)[2][4], const Shares& shares, const float (&of_input)[2],
                                             const Head& at, const Fragment& b, const Fragment& input) {
  const Fragment a = {round2(shares[0][0], shares[0][1]), round2(shares[0][2], shares[0][3]),
                      round2(shares[1][0], shares[1][1]), round2(shares[1][2], shares[1][3])};
#pragma unroll
  for (int j = 0; j < 2; j++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float2 x = at.own(input, j, half);
      out[j][2 * half] = of_input[half] * x.x, out[j][2 * half + 1] = of_input[half] * x.y;
    }
    multiply_add(out[j], a, b[2 * j], b[2 * j + 1]);
  }
}
__device__ __forceinline__ void share_of_input(float (&of_input)[2], Shares& shares) {
  of_input[0] = of_input[1] = 0.f;
  each_share(shares, [&](int half, int key, float& share) {
    if (key >= 16) of_input[half] += share;
  });
  of_input[0] = quad_sum(of_input[0]), of_input[1] = quad_sum(of_input[1]);
}

// q, scaled, and k and v, all weighted (TileRows or the like), and those of the inputs; out(half, sum, tile, first, second)
// gets what was read. `total` [.., HEADS] is where the logarithm of the softmax's sum goes, or null.
template <class Rows, class Out>
__device__ __forceinline__ void attend(const Rows& q, const Rows& k, const Rows& v, const Head& at,
                                       const Fragment (&input_keys)[SUMS], const Fragment (&input_values)[SUMS],
                                       float* total, Out out) {
  Shares shares = {};
#pragma unroll
  for (int sum = 0; sum < SUMS; sum++) {
    Fragment a, b;
    q.as_left(a, sum), k.as_right(b, sum);
    add_products(shares, a, b, input_keys[sum]);
  }
  float peak[2] = {-1e30f, -1e30f}, sums[2] = {0.f, 0.f}, rounded_sums[2] = {0.f, 0.f}, of_input[2];
  const int row = at.lane() / 4;
  each_share(shares, [&](int half, int key, float& share) {
    if (Head::allowed(row + 8 * half, key)) peak[half] = fmaxf(peak[half], share);
  });
#pragma unroll
  for (int half = 0; half < 2; half++)
    peak[half] = fmaxf(peak[half], exchange(peak[half], 1)), peak[half] = fmaxf(peak[half], exchange(peak[half], 2));
  each_share(shares, [&](int half, int key, float& share) {
    share = Head::allowed(row + 8 * half, key) ? exponential(share - peak[half]) : 0.f;
    sums[half] += share;
    if (key < 16) share = rounded(share);  // as it is multiplied, so that shares still sum to 1
    rounded_sums[half] += share;
  });
  share_of_input(of_input, shares);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sums[half] = quad_sum(sums[half]);
    if (total && at.lane() % 4 == 0 && at.row + row + 8 * half < at.valid)
      total[(at.row + row + 8 * half) * HEADS + at.head] = peak[half] + logf(sums[half]);
    sums[half] = quotient(1.f, quad_sum(rounded_sums[half]));
  }
#pragma unroll
  for (int sum = 0; sum < SUMS; sum++) {
    float read[2][4];
    Fragment b;
    v.as_turned(b, sum);
    weighted_sum(read, shares, of_input, at, b, input_values[sum]);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const float2 shift = *(const float2*)(at.vectors + QKV_SHIFT + at.feature(2, sum, j));
#pragma unroll
      for (int half = 0; half < 2; half++)
        out(half, sum, j, read[j][2 * half] * sums[half] + shift.x,
            read[j][2 * half + 1] * sums[half] + shift.y);
    }
  }
}

// The gradient of queries: `reads` the gradient of what was read, k and v, weighted; `totals` of this thread's rows.
// inner(half, x) gets the inner product of each row's shares with their gradients, before sync(), of each lane that has it, and
// out(half, sum, tile, first, second) the gradient.
template <class Rows, class Inner, class Out, class Sync>
__device__ __forceinline__ void queries_backward(const Rows& reads, const Rows& k, const Rows& v, const Head& at,
                                                 const Fragment (&queries)[SUMS], const Fragment (&input_keys)[SUMS],
                                                 const Fragment (&input_values)[SUMS], const float (&totals)[2],
                                                 float logit_scale, Inner inner, Out out, Sync sync) {
  const int row = at.lane() / 4;
  Shares shares = {}, d_shares = {};
  float inners[2] = {0.f, 0.f}, of_input[2];
#pragma unroll
  for (int sum = 0; sum < SUMS; sum++) {
    Fragment a, b;
    k.as_right(b, sum);
    add_products(shares, queries[sum], b, input_keys[sum]);
    reads.as_left(a, sum), v.as_right(b, sum);
    add_products(d_shares, a, b, input_values[sum]);
  }
#pragma unroll
  for (int j = 0; j < KEYS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int half = i / 2, key = j * 8 + at.lane() % 4 * 2 + i % 2;
      const bool there = Head::allowed(row + 8 * half, key) && at.row + row + 8 * half < at.valid;
      shares[j][i] = there ? exponential(shares[j][i] - totals[half]) : 0.f;
      d_shares[j][i] = there ? d_shares[j][i] : 0.f;
      inners[half] += shares[j][i] * d_shares[j][i];
    }
  inners[0] = quad_sum(inners[0]), inners[1] = quad_sum(inners[1]);
  inner(0, inners[0]), inner(1, inners[1]);
  sync();
#pragma unroll
  for (int j = 0; j < KEYS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) shares[j][i] *= d_shares[j][i] - inners[i / 2];
  share_of_input(of_input, shares);
#pragma unroll
  for (int sum = 0; sum < SUMS; sum++) {
    float d[2][4];
    Fragment b;
    k.as_turned(b, sum);
    weighted_sum(d, shares, of_input, at, b, input_keys[sum]);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        out(half, sum, j, d[j][2 * half] * logit_scale, d[j][2 * half + 1] * logit_scale);
  }
}

// The gradients of 16 keys and values, the rows' own or (INPUT) their samples' inputs', all weighted: `reads` the gradient of
// what was read, q the queries, scaled and weighted; of those `totals`, and, after sync(), inner(tile, i), as Head::query numbers
// them. out(half, part, sum, tile, first, second) gets the gradients, of samples instead of rows for inputs.
template <bool INPUT, class Rows, class Inner, class Out, class Sync>
__device__ __forceinline__ void keys_backward(const Rows& reads, const Rows& q, const Head& at, const Fragment (&keys)[SUMS],
                                              const Fragment (&values)[SUMS], const float (&totals)[2][2], Inner inner,
                                              Out out, Sync sync) {
  const int row = at.lane() / 4;
  float shares[2][4] = {}, d_shares[2][4] = {};  // keys, queries
#pragma unroll
  for (int sum = 0; sum < SUMS; sum++) {
    Fragment b;
    q.as_right(b, sum);
    multiply_add(shares[0], keys[sum], b[0], b[1]);
    multiply_add(shares[1], keys[sum], b[2], b[3]);
    reads.as_right(b, sum);
    multiply_add(d_shares[0], values[sum], b[0], b[1]);
    multiply_add(d_shares[1], values[sum], b[2], b[3]);
  }
  sync();
  float inners[2][2];
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) inners[j][i] = inner(j, i);
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int query = j * 8 + at.lane() % 4 * 2 + i % 2, key = row + i / 2 * 8;
      const bool there = Head::allowed(query, INPUT ? 16 + key : key) && at.row + query < at.valid;
      shares[j][i] = there ? exponential(shares[j][i] - totals[j][i % 2]) : 0.f;
      d_shares[j][i] = there ? shares[j][i] * (d_shares[j][i] - inners[j][i % 2]) : 0.f;
    }
  const Fragment p = {round2(shares[0][0], shares[0][1]), round2(shares[0][2], shares[0][3]),
                      round2(shares[1][0], shares[1][1]), round2(shares[1][2], shares[1][3])};
  const Fragment s = {round2(d_shares[0][0], d_shares[0][1]), round2(d_shares[0][2], d_shares[0][3]),
                      round2(d_shares[1][0], d_shares[1][1]), round2(d_shares[1][2], d_shares[1][3])};
#pragma unroll
  for (int sum = 0; sum < SUMS; sum++) {
    Fragment queries, gradients;
    q.as_turned(queries, sum), reads.as_turned(gradients, sum);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float d_key[4] = {}, d_value[4] = {};
      multiply_add(d_key, s, queries[2 * j], queries[2 * j + 1]);
      multiply_add(d_value, p, gradients[2 * j], gradients[2 * j + 1]);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int key = row + 8 * half;
        if (INPUT && !(key < INPUTS && at.row + key * N < at.valid)) continue;
        out(half, 1, sum, j, d_key[2 * half], d_key[2 * half + 1]);
        out(half, 2, sum, j, d_value[2 * half], d_value[2 * half + 1]);
      }
    }
  }
}
