// A whole sequence, forward: a program takes the rows of `share` samples through all steps. KEEP: the backward pass
// wants what was computed on the way; RESETS: episodes may begin anywhere. Shapes as in recurrence.py.

// Products in the order k, v, q, MLP, gates.

extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) sequence_forward(
    const float* memory,                   // [B, N, F]
    const bf16* __restrict__ inputs,       // [T, B, Q], normalised
    const bf16* __restrict__ gates_in,     // [T, B, gate_width]
    const bool* resets,                    // [T, B]
    const void* packed,                    // the products' weights
    const bf16* __restrict__ gate_weight,  // [2, F], for two gates a slot
    const float* __restrict__ all_vectors,  // one after the other
    float* memories,                       // [T, B, N, F]
    float* starts,                         // the same, where there are resets
    bf16* __restrict__ kept_rows, bf16* __restrict__ kept_hidden, bf16* __restrict__ kept_qkv,
    bf16* __restrict__ kept_gates, bf16* __restrict__ kept_attended, bf16* __restrict__ kept_mlp,
    float* __restrict__ kept_scales, bf16* __restrict__ kept_normed, float* __restrict__ kept_total, int steps, int batch, int share,
    int gate_width, int gate_stride, double logit_scale) {
  char *const a = shared_memory(), *const b = a + TILE, *const c = b + TILE, *const ring = c + TILE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = blockIdx.x * share;  // sample
  const int valid = min(share, batch - first) * N;
  const long all = (long)batch * N, base = (long)first * N;  // rows of a step; of those, this program's first
  const int feature = lane * E, head = feature / V, in_head = head * 3 * V + feature % V;  // this lane's first
  Weights weights = stream(packed, PRODUCTS, ring);
  Sums sums;
  const auto begins = [&](int t, int row) { return RESETS && resets[(long)t * batch + first + row / N]; };
  const auto begin = [&](Row& x, int t, int row) {  // an episode, if one begins with step t
    if (begins(t, row))
#pragma unroll
      for (int e = 0; e < E; e++) x[e] = feature + e == row % N ? 1.f : 0.f;
    if (RESETS) store(starts + (t * all + base + row) * F + feature, x);
  };

  // The memory a step begins with, as it is multiplied, is in a: first the initial one, then what the step before left.
  each_row<4>(
      ROWS,
      [&](int row) {
        Exact in = {};
        if (row < valid) load(in.x, memory + (base + row) * F + feature);
        return in;
      },
      [&](int row, Exact& in) {
        if (row < valid) begin(in.x, 0, row);
        store_tile(a, row, lane, in.x);
      });
  __syncthreads();

  for (int t = 0; t < steps; t++) {
    const float* const vectors = ALONE ? anew(all_vectors) : all_vectors;
    const float* before = RESETS ? starts + t * all * F : t == 0 ? memory : memories + (t - 1) * all * F;
    if (KEEP)
      for (int row = warp; row < valid; row += WARPS) {
        Row x;
        load_tile(x, a, row, lane), store(kept_rows + (t * all + base + row) * F + feature, x);
      }

    // keys into b, values into c, queries in place of the memory. Loops that are not unrolled keep the code in its cache.
#pragma unroll 1
    for (int part = 0; part < 3; part++) {
      clear(sums);
      multiply(sums, weights, a);
      if (part == 2) __syncthreads();
      char* const to = part == 2 ? a : part == 1 ? c : b;
      const float* const bias = vectors + QKV_BIAS + (part + 1) % 3 * V;
      each_pair(sums, [&](int row, int column, int, float& x, float& y) {
        const int i = column / V * 3 * V + column % V;
        put_halves(to, row, column, x + bias[i], y + bias[i + 1]);
      });
    }
    __syncthreads();

    {  // their norm; the weights are centred, so there is no mean to take off. In the tiles they are weighted
      Row query_weight, query_shift, key_weight, value_weight;
      load(query_weight, vectors + QKV_WEIGHT + in_head), load(query_shift, vectors + QKV_SHIFT + in_head);
      load(key_weight, vectors + QKV_WEIGHT + V + in_head), load(value_weight, vectors + QKV_WEIGHT + 2 * V + in_head);
      for (int row = warp; row < ROWS; row += WARPS) {
        Row q = {}, k = {}, v = {};
        if (row >= valid) {  // what is multiplied by shares of zero must be a number
          store_tile(a, row, lane, q), store_tile(b, row, lane, k), store_tile(c, row, lane, v);
          continue;
        }
        load_halves(q, a, row, lane), load_halves(k, b, row, lane), load_halves(v, c, row, lane);
        float squares = 0.f;
#pragma unroll
        for (int e = 0; e < E; e++) squares += q[e] * q[e] + k[e] * k[e] + v[e] * v[e];
        const float scale = reciprocal_root(warp_sum(squares) / Q + EPSILON);
#pragma unroll
        for (int e = 0; e < E; e++) {
          q[e] = rounded(q[e] * scale), k[e] = rounded(k[e] * scale), v[e] = rounded(v[e] * scale);
        }
        if (KEEP) {
          bf16* qkv = kept_qkv + (t * all + base + row) * Q + in_head;
          store(qkv, q), store(qkv + V, k), store(qkv + 2 * V, v);
          if (lane == 0) kept_scales[(t * all + base + row) * 3] = scale;
        }
#pragma unroll
        for (int e = 0; e < E; e++) {
          q[e] = (q[e] * query_weight[e] + query_shift[e]) * (float)logit_scale;
          k[e] *= key_weight[e], v[e] *= value_weight[e];
        }
        store_tile(a, row, lane, q), store_tile(b, row, lane, k), store_tile(c, row, lane, v);
      }
    }
    __syncthreads();

    // attention: what was read in place of the queries
    for (int unit = warp; unit < MT * HEADS; unit += WARPS) {
      const Head at{unit / HEADS * 16, unit % HEADS, valid, inputs + ((long)t * batch + first) * Q, vectors};
      if (at.row >= valid) continue;
      Fragment input_keys[SUMS], input_values[SUMS];
      at.inputs_of(input_keys, 1), at.inputs_of(input_values, 2);
      attend(at.of(a), at.of(b), at.of(c), at, input_keys, input_values,
             KEEP ? kept_total + (t * all + base) * HEADS : nullptr, [&](int half, int sum, int tile, float x, float y) {
               put_halves(a, at.row_of(half), at.column_of(sum, tile), x, y);
             });
    }
    __syncthreads();
    {  // residual and norm
      Row weight, shift;
      load(weight, vectors + READ_WEIGHT + feature), load(shift, vectors + READ_SHIFT + feature);
      each_row<4>(
          valid,
          [&](int row) {
            Exact in;
            load_fresh(in.x, before + (base + row) * F + feature);
            return in;
          },
          [&](int row, Exact& in) {
            const long i = (base + row) * F + feature;
            Row &x = in.x, read;
            load_halves(read, a, row, lane);
#pragma unroll
            for (int e = 0; e < E; e++) x[e] += read[e];
            const float scale = normalize(x);
            if (KEEP) {
              store(kept_normed + t * all * F + i, x);
              if (lane == 0) kept_scales[(t * all + base + row) * 3 + 1] = scale;
            }
#pragma unroll
            for (int e = 0; e < E; e++) x[e] = x[e] * weight[e] + shift[e];
            store_tile(a, row, lane, x);
            if (KEEP) store(kept_attended + t * all * F + i, x);
          });
    }
    __syncthreads();

    // the MLP: a into b into c into b ..., and at last without bias
    char *from = a, *to = b;
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
      clear(sums);
      multiply(sums, weights, from);
      const float* bias = vectors + MLP_BIAS + layer * F;
      each_pair(sums, [&](int row, int column, int, float& x, float& y) {
        if (layer < LAYERS - 1) put(to, row, column, fmaxf(x + bias[column], 0.f), fmaxf(y + bias[column + 1], 0.f));
        else put_halves(to, row, column, x, y);
      });
      __syncthreads();
      if (KEEP && layer < LAYERS - 1)
        for (int row = warp; row < valid; row += WARPS) {
          Row x;
          load_tile(x, to, row, lane);
          store(kept_mlp + (((long)layer * steps + t) * all + base + row) * F + feature, x);
        }
      from = to, to = to == b ? c : b;
    }

    // its residual and norm; tanh of the memory, and two gates a slot
    float* after = memories + t * all * F;
    char *const candidate = from, *const hidden = to;
    Row bias, weight, shift;
    load(bias, vectors + MLP_BIAS + (LAYERS - 1) * F + feature);
    load(weight, vectors + MLP_WEIGHT + feature), load(shift, vectors + MLP_SHIFT + feature);
    each_row<4>(valid, [&](int row) {
      Exact in;
      if (GATES > 0) load_fresh(in.x, before + (base + row) * F + feature);
      return in;
    }, [&](int row, Exact& in) {
      const long i = (base + row) * F + feature;
      Row x, y, &m = in.x;
      load_halves(x, candidate, row, lane);
      load_tile(y, a, row, lane);
#pragma unroll
      for (int e = 0; e < E; e++) x[e] += y[e] + bias[e];
      const float scale = normalize(x);
      if (KEEP) {
        store(kept_mlp + ((long)(LAYERS - 1) * steps + t) * all * F + i, x);
        if (lane == 0) kept_scales[(t * all + base + row) * 3 + 2] = scale;
      }
#pragma unroll
      for (int e = 0; e < E; e++) x[e] = x[e] * weight[e] + shift[e];
      if (GATES == 0) {
        store(after + i, x);
        if (t + 1 < steps) begin(x, t + 1, row), store_tile(a, row, lane, x);
        return;
      }
#pragma unroll
      for (int e = 0; e < E; e++) x[e] = tangent(x[e]), y[e] = tangent(m[e]);
      if (KEEP) store(kept_hidden + t * all * F + i, y);
      if (GATES == 2) {
        store_halves(candidate, row, lane, x), store_tile(hidden, row, lane, y);
        return;
      }
      float gates[2];
#pragma unroll
      for (int g = 0; g < 2; g++) {
        Row w;
        load(w, gate_weight + g * F + feature);
        float sum = 0.f;
#pragma unroll
        for (int e = 0; e < E; e++) sum += rounded(y[e]) * w[e];
        gates[g] = rounded(warp_sum(sum));
        if (KEEP && lane == 0) kept_gates[(t * all + base + row) * gate_stride + g] = round2(gates[g], 0.f);
        gates[g] = sigmoid(gates[g] + low(gates_in[((long)t * batch + first + row / N) * gate_width + g]));
      }
#pragma unroll
      for (int e = 0; e < E; e++) x[e] = gates[0] * x[e] + gates[1] * m[e];
      store(after + i, x);
      if (t + 1 < steps) begin(x, t + 1, row), store_tile(a, row, lane, x);
    });
    __syncthreads();

    if (GATES == 2) {  // a product has both gates of half the features, in neighbouring tiles
#pragma unroll 1
      for (int part = 0; part < 2; part++) {
        clear(sums);
        multiply(sums, weights, hidden);
        const int own = part * (F / 2) + warp * UNITS * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < MT; i++) {
          struct In { unsigned accept, retain; float2 m; };
          const auto fetch = [&](int row, int column) {
            const bf16* const from = gates_in + ((long)t * batch + first + row / N) * gate_width + column;
            return In{*(const unsigned*)from, *(const unsigned*)(from + F), fresh((const float2*)(before + (base + row) * F + column))};
          };
          In ins[2][UNITS];  // asked for before anything is written, if there are registers: one wait
          if (ALONE)
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
              for (int u = 0; u < UNITS; u++) {
                const int row = i * 16 + k * 8 + lane / 4;
                if (row < valid) ins[k][u] = fetch(row, own + u * 8);
              }
#pragma unroll
          for (int k = 0; k < 2; k++) {
            const int row = i * 16 + k * 8 + lane / 4;
            if (row >= valid) continue;
            const long r = base + row, g = (t * all + r) * (2 * F);
            const bool anew = t + 1 < steps && begins(t + 1, row);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
              const int column = own + u * 8;
              const float2 accept = make_float2(sums[i][2 * u][2 * k], sums[i][2 * u][2 * k + 1]);
              const float2 retain = make_float2(sums[i][2 * u + 1][2 * k], sums[i][2 * u + 1][2 * k + 1]);
              if (KEEP) {
                *(unsigned*)(kept_gates + g + column) = round2(accept.x, accept.y);
                *(unsigned*)(kept_gates + g + F + column) = round2(retain.x, retain.y);
              }
              const In in = ALONE ? ins[k][u] : fetch(row, column);
              const float2 squashed = from_halves(*(const unsigned*)at(candidate, row, column));
              float2 result;
              result.x = sigmoid(accept.x + low(in.accept)) * squashed.x + sigmoid(retain.x + low(in.retain)) * in.m.x;
              result.y = sigmoid(accept.y + high(in.accept)) * squashed.y + sigmoid(retain.y + high(in.retain)) * in.m.y;
              *(float2*)(after + r * F + column) = result;
              if (anew) result.x = column == row % N, result.y = column + 1 == row % N;
              if (RESETS && t + 1 < steps) *(float2*)(starts + ((t + 1) * all + r) * F + column) = result;
              put(a, row, column, result.x, result.y);
            }
          }
        }
      }
      __syncthreads();
    }
  }
  wait_async<0>();
}
