// A whole sequence, backward: a program takes the gradients of its samples' rows back through all steps, from what the
// forward pass kept, and leaves for each product the gradient of its result; the weights' gradients are made of those
// afterwards. Shapes and formulas as in recurrence.py and README.md.

// Products in the order MLP, last first; gates; q, k, v.
constexpr int COLUMNS = MLP_BIAS + LAYERS * F;
constexpr bool SPARE = ROWS * F != 64 * 256;  // room for sums beside the tiles; else they take the place of two tiles

struct Columns {  // sums over the rows of a program: gradients of biases and norms
  float* totals;  // [COLUMNS], this program's own

  // Rows of which each warp has summed its own, one after the other, become totals of the columns `where` says.
  template <int COUNT>
  __device__ __forceinline__ void add(const Row (&sums)[COUNT], char* scratch, const int (&where)[COUNT]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++) store((float*)scratch + (i * WARPS + warp) * F + lane * E, sums[i]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      for (int column = threadIdx.x; column < F; column += THREADS) {
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += ((float*)scratch)[(i * WARPS + w) * F + column];
        atomicAdd(totals + where[i] + position(where[i], column), total);  // nobody else has this address
      }
    __syncthreads();
  }
  // queries, keys and values are side by side for each head
  static __device__ __forceinline__ int position(int where, int column) {
    return where < READ_WEIGHT ? column / V * 3 * V + column % V : column;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) sequence_backward(
    const float* __restrict__ grad,        // [T, B, N, F] of the memories
    const float* __restrict__ memory,      // [B, N, F]
    const float* __restrict__ memories,    // [T, B, N, F]
    const float* __restrict__ starts,      // the same, where there are resets
    const bf16* __restrict__ inputs,       // [T, B, Q], normalised
    const bf16* __restrict__ gates_in,     // [T, B, gate_width]
    const bool* __restrict__ resets,       // [T, B]
    const void* packed,                    // the products' weights
    const bf16* __restrict__ gate_weight,  // [2, F], for two gates a slot
    const float* __restrict__ all_vectors,  // one after the other
    const bf16* __restrict__ kept_hidden, const bf16* __restrict__ kept_qkv, const bf16* __restrict__ kept_gates,
    const bf16* __restrict__ kept_mlp, const float* __restrict__ kept_scales, const bf16* __restrict__ kept_normed,
    const float* __restrict__ kept_total,
    float* carry,           // [B, N, F]: of the memory a step begins with; at the end, of the initial one
    bf16* d_inputs,         // [T, B, Q], of the weighted normalised input
    bf16* __restrict__ d_gates_in,  // [T, B, 2 F], of two gates a feature
    bf16* d_qkv, bf16* d_gates, bf16* __restrict__ d_mlp,
    float* inner_products,  // [B N, HEADS], for us alone
    float* totals,          // [programs, COLUMNS], zero before
    int steps, int batch, int share, int gate_width, int gate_stride, double logit_scale) {
  char *const a = shared_memory(), *const b = a + TILE, *const c = b + TILE, *const ring = c + TILE;
  char* const spare = ring + DEPTH * UNIT;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = blockIdx.x * share;  // sample
  const int samples = min(share, batch - first), valid = samples * N;
  const long all = (long)batch * N, base = (long)first * N;
  const int feature = lane * E, head = feature / V, in_head = head * 3 * V + feature % V;
  Weights weights = stream(packed, PRODUCTS, ring);
  Columns columns{totals + (long)blockIdx.x * COLUMNS};
  Sums sums;

  for (int t = steps - 1; t >= 0; t--) {
    const float* const vectors = ALONE ? anew(all_vectors) : all_vectors;
    const float* before = RESETS ? starts + t * all * F : t == 0 ? memory : memories + (t - 1) * all * F;
    bf16* const d_last = d_mlp + ((long)(LAYERS - 1) * steps + t) * all * F;

    {  // gates, candidate and its norm: the gradient of the MLP's output into a
      Row column_sums[3] = {}, weight, shift;
      load(weight, vectors + MLP_WEIGHT + feature), load(shift, vectors + MLP_SHIFT + feature);
      for (int row = warp; row < ROWS; row += WARPS) {
        if (row >= valid) {  // what is multiplied by shares of zero must be a number
          store_tile(a, row, lane, {});
          continue;
        }
        const long i = (base + row) * F + feature, r = t * all + base + row;
        Row d, x, y, m;
        load(d, grad + t * all * F + i);
        if (t + 1 < steps && !(RESETS && resets[(long)(t + 1) * batch + first + row / N])) {
          load_fresh(x, carry + i);
#pragma unroll
          for (int e = 0; e < E; e++) d[e] += x[e];
        }
        load(x, kept_mlp + ((long)(LAYERS - 1) * steps + t) * all * F + i);
        const float scale = kept_scales[r * 3 + 2];
        Row direct = {};
        if (GATES > 0) {
          Row tanh_candidate, accept, retain;
#pragma unroll
          for (int e = 0; e < E; e++) tanh_candidate[e] = tangent(x[e] * weight[e] + shift[e]);
          load(m, before + i);
          const bf16* in = gates_in + ((long)t * batch + first + row / N) * gate_width;
          if (GATES == 2) {
            load(accept, kept_gates + r * 2 * F + feature), load(y, in + feature);
#pragma unroll
            for (int e = 0; e < E; e++) accept[e] = sigmoid(accept[e] + y[e]);
            load(retain, kept_gates + r * 2 * F + F + feature), load(y, in + F + feature);
#pragma unroll
            for (int e = 0; e < E; e++) retain[e] = sigmoid(retain[e] + y[e]);
          } else {
            const float both[2] = {sigmoid(low(kept_gates[r * gate_stride]) + low(in[0])),
                                   sigmoid(low(kept_gates[r * gate_stride + 1]) + low(in[1]))};
#pragma unroll
            for (int e = 0; e < E; e++) accept[e] = both[0], retain[e] = both[1];
          }
          Row d_accept, d_retain;
#pragma unroll
          for (int e = 0; e < E; e++) {
            d_accept[e] = d[e] * tanh_candidate[e] * accept[e] * (1.f - accept[e]);
            d_retain[e] = d[e] * m[e] * retain[e] * (1.f - retain[e]);
            direct[e] = d[e] * retain[e];
            d[e] *= accept[e] * (1.f - tanh_candidate[e] * tanh_candidate[e]);
          }
          if (GATES == 2) {
            store(d_gates + r * 2 * F + feature, d_accept), store(d_gates + r * 2 * F + F + feature, d_retain);
          } else {  // their product with the weights, and tanh, at once
            Row one, two;
            load(one, gate_weight + feature), load(two, gate_weight + F + feature);
            load(y, kept_hidden + r * F + feature);
            float own[2] = {0.f, 0.f};
#pragma unroll
            for (int e = 0; e < E; e++) own[0] += d_accept[e], own[1] += d_retain[e];
            own[0] = rounded(warp_sum(own[0])), own[1] = rounded(warp_sum(own[1]));
            if (lane == 0) *(unsigned*)(d_gates + r * gate_stride) = round2(own[0], own[1]);
#pragma unroll
            for (int e = 0; e < E; e++) direct[e] += (own[0] * one[e] + own[1] * two[e]) * (1.f - y[e] * y[e]);
          }
        }
        store(carry + i, direct);
        norm_backward(d, x, weight, scale, column_sums[0], column_sums[1]);
#pragma unroll
        for (int e = 0; e < E; e++) column_sums[2][e] += d[e];
        store_tile(a, row, lane, d);
        store(d_last + i, d);
        if (LAYERS > 1) {  // what the next product's result is compared with
          load(x, kept_mlp + ((long)(LAYERS - 2) * steps + t) * all * F + i);
          if (SPARE) store_tile(b, row, lane, x);
        }
      }
      columns.add<3>(column_sums, SPARE ? spare : b, {MLP_WEIGHT, MLP_SHIFT, MLP_BIAS + (LAYERS - 1) * F});
    }

    // the MLP: a into b into c into b ..., and at last into a, where the residual already is
    char *from = a, *to = b;
#pragma unroll 1
    for (int layer = LAYERS - 1; layer > 0; layer--) {
      const long offset = ((long)(layer - 1) * steps + t) * all * F;
      if (!SPARE || layer < LAYERS - 1) {
        each_row<2>(
            valid, [&](int row) { return ask(kept_mlp + offset + (base + row) * F + feature); },
            [&](int row, const Packed& x) { store_tile(to, row, lane, x); });
        __syncthreads();
      }
      clear(sums);
      multiply(sums, weights, from);
      float bias_sums[NT][2] = {};
      each_pair(sums, [&](int row, int column, int tile, float& x, float& y) {
        const unsigned active = *(const unsigned*)at(to, row, column);
        if (!(low(active) > 0.f)) x = 0.f;
        if (!(high(active) > 0.f)) y = 0.f;
        put(to, row, column, x, y);
        if (row < valid) bias_sums[tile][0] += x, bias_sums[tile][1] += y;
      });
#pragma unroll
      for (int j = 0; j < NT; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          float total = bias_sums[j][k];
          total += exchange(total, 4), total += exchange(total, 8), total += exchange(total, 16);
          const int column = warp * (NT * 8) + j * 8 + lane * 2 + k;
          if (lane < 4) atomicAdd(columns.totals + MLP_BIAS + (layer - 1) * F + column, total);
        }
      __syncthreads();
      for (int row = warp; row < valid; row += WARPS) {
        Row x;
        load_tile(x, to, row, lane);
        store(d_mlp + offset + (base + row) * F + feature, x);
      }
      from = to, to = to == b ? c : b;
    }
    clear(sums);
    multiply(sums, weights, from);
    if (LAYERS == 1) __syncthreads();
    each_pair(sums, [&](int row, int column, int, float& x, float& y) {
      const unsigned around = *(const unsigned*)at(a, row, column);
      put(a, row, column, x + low(around), y + high(around));
    });
    __syncthreads();

    {  // the attention's residual and norm: the gradient of what was read into a
      Row column_sums[2] = {}, weight;
      load(weight, vectors + READ_WEIGHT + feature);
      struct In { Packed x; Row carried; float scale; };
      const auto fetch = [&](int row) {
        const long i = (base + row) * F + feature;
        In in;
        in.x = ask(kept_normed + t * all * F + i), in.scale = kept_scales[(t * all + base + row) * 3 + 1];
        load_fresh(in.carried, carry + i);
        return in;
      };
      each_row<2>(valid, fetch, [&](int row, In& in) {
        Row d, x;
        unpack(x, in.x), load_tile(d, a, row, lane);
        norm_backward(d, x, weight, in.scale, column_sums[0], column_sums[1]);
#pragma unroll
        for (int e = 0; e < E; e++) in.carried[e] += d[e];
        store(carry + (base + row) * F + feature, in.carried);
        store_tile(a, row, lane, d);
      });
      columns.add<2>(column_sums, SPARE ? spare : b, {READ_WEIGHT, READ_SHIFT});
    }

    // attention: first what queries get back; keys and values, weighted, in b and c
    const bf16* const qkv = kept_qkv + (t * all + base) * Q;
    const float* const total = kept_total + (t * all + base) * HEADS;
    float* const inner = inner_products + base * HEADS;
    const bf16* const input = inputs + ((long)t * batch + first) * Q;
    const auto put_gradient = [&](const Head& at, int half, int part, int sum, int tile, float x, float y) {
      const int row = at.row_of(half);
      if (row < valid) *(unsigned*)(d_qkv + (t * all + base + row) * Q + at.feature(part, sum, tile)) = round2(x, y);
    };
    {
      Row key_weight, value_weight;
      load(key_weight, vectors + QKV_WEIGHT + V + in_head), load(value_weight, vectors + QKV_WEIGHT + 2 * V + in_head);
      struct In { Packed k, v; };
      const auto fetch = [&](int row) {
        const bf16* const from = qkv + (long)row * Q + in_head;
        return In{ask(from + V, row < valid), ask(from + 2 * V, row < valid)};
      };
      each_row<2>(ROWS, fetch, [&](int row, const In& in) {
        Row k, v;
        unpack(k, in.k), unpack(v, in.v);
#pragma unroll
        for (int e = 0; e < E; e++) k[e] *= key_weight[e], v[e] *= value_weight[e];
        store_tile(b, row, lane, k), store_tile(c, row, lane, v);
      });
    }
    __syncthreads();
    for (int unit = warp; unit < MT * HEADS; unit += WARPS) {
      const Head at{unit / HEADS * 16, unit % HEADS, valid, input, vectors};
      if (at.row >= valid) continue;
      Fragment queries[SUMS], input_keys[SUMS], input_values[SUMS];
      float totals[2];
      at.rows(queries, qkv, 0, (float)logit_scale), at.inputs_of(input_keys, 1), at.inputs_of(input_values, 2);
      at.totals_of_rows(totals, total);
      queries_backward(
          at.of(a), at.of(b), at.of(c), at, queries, input_keys, input_values, totals, (float)logit_scale,
          [&](int half, float x) {
            if (lane % 4 == 0 && at.row_of(half) < valid) inner[at.row_of(half) * HEADS + at.head] = x;
          },
          [&](int half, int sum, int tile, float x, float y) { put_gradient(at, half, 0, sum, tile, x, y); }, [] {});
    }
    __syncthreads();

    // then what keys and values get back; queries, weighted, in b
    {
      Row query_weight, query_shift;
      load(query_weight, vectors + QKV_WEIGHT + in_head), load(query_shift, vectors + QKV_SHIFT + in_head);
      const auto fetch = [&](int row) { return ask(qkv + (long)row * Q + in_head, row < valid); };
      each_row<2>(ROWS, fetch, [&](int row, const Packed& in) {
        Row q;
        unpack(q, in);
#pragma unroll
        for (int e = 0; e < E; e++) q[e] = (q[e] * query_weight[e] + query_shift[e]) * (float)logit_scale;
        store_tile(b, row, lane, q);
      });
    }
    __syncthreads();
    for (int unit = warp; unit < 2 * MT * HEADS; unit += WARPS) {
      const Head at{unit / 2 / HEADS * 16, unit / 2 % HEADS, valid, input, vectors};
      if (at.row >= valid) continue;
      Fragment keys[SUMS], values[SUMS];
      float totals[2][2];
      at.totals_of_columns(totals, total);
      const auto inner_of = [&](int tile, int i) {
        const int row = at.query(tile, i);
        return row < valid ? fresh(inner + row * HEADS + at.head) : 0.f;
      };
      if (unit % 2) {
        at.inputs_of(keys, 1), at.inputs_of(values, 2);
        keys_backward<true>(at.of(a), at.of(b), at, keys, values, totals, inner_of,
                            [&](int half, int part, int sum, int tile, float x, float y) {
                              bf16* const to = d_inputs + ((long)t * batch + first) * Q + at.input_at(half, part, sum, tile);
                              *(unsigned*)to = round2(x, y);
                              // nobody reads what the input would have attended to
                              if (part == 1) *(unsigned*)(to - V) = 0u;
                            },
                            [] {});
      } else {
        at.rows(keys, qkv, 1, 1.f);
#pragma unroll
        for (int sum = 0; sum < SUMS; sum++) at.of(c).as_left(values[sum], sum);
        keys_backward<false>(at.of(a), at.of(b), at, keys, values, totals, inner_of,
                             [&](int half, int part, int sum, int tile, float x, float y) {
                               put_gradient(at, half, part, sum, tile, x, y);
                             },
                             [] {});
      }
    }
    __syncthreads();

    {  // the norm of queries, keys and values
      Row column_sums[6] = {};  // weights and shifts of q, k, v
      struct In { Packed d[3], x[3]; float scale; };
      const auto fetch = [&](int row) {
        In in;
#pragma unroll
        for (int part = 0; part < 3; part++) {
          in.d[part] = ask_fresh(d_qkv + (t * all + base + row) * Q + in_head + part * V);
          in.x[part] = ask(qkv + (long)row * Q + part * V + in_head);
        }
        in.scale = kept_scales[(t * all + base + row) * 3];
        return in;
      };
      each_row<1>(valid, fetch, [&](int row, const In& in) {
        bf16* const out = d_qkv + (t * all + base + row) * Q + in_head;
        Row d[3], x[3];
        float mean = 0.f, along = 0.f;
#pragma unroll
        for (int part = 0; part < 3; part++) {
          Row weight;
          unpack(d[part], in.d[part]), unpack(x[part], in.x[part]);
          load(weight, vectors + QKV_WEIGHT + part * V + in_head);
#pragma unroll
          for (int e = 0; e < E; e++) {
            column_sums[part][e] += d[part][e] * x[part][e], column_sums[3 + part][e] += d[part][e];
            d[part][e] *= weight[e], mean += d[part][e], along += d[part][e] * x[part][e];
          }
        }
        mean = warp_sum(mean) / Q, along = warp_sum(along) / Q;
#pragma unroll
        for (int part = 0; part < 3; part++) {
#pragma unroll
          for (int e = 0; e < E; e++) d[part][e] = (d[part][e] - mean - x[part][e] * along) * in.scale;
          store(out + part * V, d[part]);
        }
      });
      columns.add<6>(column_sums, SPARE ? spare : a,
                     {QKV_WEIGHT, QKV_WEIGHT + V, QKV_WEIGHT + 2 * V, QKV_SHIFT, QKV_SHIFT + V, QKV_SHIFT + 2 * V});
    }

    // products back to the memory: first through the gates, where tanh of the memory is, in a, then through q, k, v
    struct Three { Packed x, y, z; };
    const auto put_three = [&](int row, const Three& in) {
      store_tile(a, row, lane, in.x), store_tile(b, row, lane, in.y), store_tile(c, row, lane, in.z);
    };
    clear(sums);
    if (GATES == 2) {
      const auto fetch = [&](int row) {
        const long r = t * all + base + row;
        const bf16* const gates = d_gates + r * 2 * F + feature;
        return Three{ask(kept_hidden + r * F + feature), ask_fresh(gates), ask_fresh(gates + F)};
      };
      each_row<2>(valid, fetch, put_three);
      __syncthreads();
      for (int i = threadIdx.x; i < 2 * F; i += THREADS) {  // the input's share is the same for all slots
        const int gate = i;
        for (int sample = 0; sample < samples; sample++) {
          float total = 0.f;
#pragma unroll
          for (int n = 0; n < N; n++) total += low(*at(gate < F ? b : c, sample * N + n, gate % F));
          d_gates_in[((long)t * batch + first + sample) * (2 * F) + gate] = round2(total, 0.f);
        }
      }
#pragma unroll 1
      for (int gate = 0; gate < 2; gate++) multiply(sums, weights, b + gate * TILE);
      each_pair(sums, [&](int row, int column, int, float& x, float& y) {
        const unsigned hidden = *(const unsigned*)at(a, row, column);
        x *= 1.f - low(hidden) * low(hidden), y *= 1.f - high(hidden) * high(hidden);
      });
      __syncthreads();
    }
    const auto fetch_qkv = [&](int row) {
      const bf16* const d = d_qkv + (t * all + base + row) * Q + in_head;
      return Three{ask_fresh(d), ask_fresh(d + V), ask_fresh(d + 2 * V)};
    };
    each_row<2>(valid, fetch_qkv, put_three);
    __syncthreads();
    for (int i = threadIdx.x; i < F; i += THREADS) {  // the bias of all three
      const int column = i;
      float total[3] = {0.f, 0.f, 0.f};
      for (int row = 0; row < valid; row++)
        total[0] += low(*at(a, row, column)), total[1] += low(*at(b, row, column)), total[2] += low(*at(c, row, column));
      for (int k = 0; k < 3; k++)
        atomicAdd(columns.totals + QKV_BIAS + column / V * 3 * V + column % V + k * V, total[k]);
    }
    // to what there is already: all of it is asked for before any is written
    each_pair(sums, [&](int row, int column, int, float& x, float& y) {
      if (row >= valid) return;
      const float2 sum = fresh((const float2*)(carry + (base + row) * F + column));
      x += sum.x, y += sum.y;
    });
#pragma unroll 1
    for (int part = 0; part < 3; part++) multiply(sums, weights, a + part * TILE);
    each_pair(sums, [&](int row, int column, int, float& x, float& y) {
      if (row < valid) *(float2*)(carry + (base + row) * F + column) = make_float2(x, y);
    });
    __syncthreads();
  }
  wait_async<0>();
}
