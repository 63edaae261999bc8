// A whole sequence, backward, with weights that stay: as backward.cu, which has the same arguments and formulas.

enum { UPDATED, GATED, HIDDEN, ATTENDED = HIDDEN + LAYERS, READ, NORMED, PROJECTED, COUNTERS };  // gradients of what forward sent
constexpr int COLUMNS = MLP_BIAS + LAYERS * F;

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) resident_backward(
    const float* __restrict__ grad,        // [T, B, N, F] of the memories
    const float* __restrict__ memory,      // [B, N, F]
    const float* __restrict__ memories,    // [T, B, N, F]
    const float* __restrict__ starts,      // the same, where there are resets
    const bf16* __restrict__ inputs,       // [T, B, Q], normalised
    const bf16* __restrict__ gates_in,     // [T, B, gate_width]
    const bool* __restrict__ resets,       // [T, B]
    const void* packed,                    // the products' weights
    const bf16* __restrict__ gate_weight,  // [2, F], for two gates a slot
    const float* __restrict__ vectors,     // one after the other
    const bf16* __restrict__ kept_hidden, const bf16* __restrict__ kept_qkv, const bf16* __restrict__ kept_gates,
    const bf16* __restrict__ kept_mlp, const float* __restrict__ kept_scales, const bf16* __restrict__ kept_normed,
    const float* __restrict__ kept_total,
    float* carry,           // [B, N, F], of the initial memory
    bf16* d_inputs,         // [T, B, Q], of the weighted normalised input
    bf16* __restrict__ d_gates_in,  // [T, B, 2 F], of two gates a feature
    bf16* __restrict__ d_qkv, bf16* __restrict__ d_gates, bf16* __restrict__ d_mlp,
    float*,                 // not wanted here
    float* totals,          // [programs, COLUMNS]
    int steps, int batch, int share, int gate_width, int gate_stride, double logit_scale) {
  // The gradient of the MLP's output is in a, those of two gates a feature in b and c, of its layers in d, b, d ...; then
  // those of what was read in a, and queries, keys and values in b, c, d; then the gradients of those in b, c, d.
  char *const a = shared_memory() + TILES, *const b = a + TILE, *const c = b + TILE, *const d = c + TILE;
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const int first = blockIdx.x / CLUSTER * share;  // sample
  const int samples = min(share, batch - first), valid = samples * N;
  const long all = (long)batch * N, base = (long)first * N;
  const int feature = lane * E, head = feature / V, in_head = head * 3 * V + feature % V;

  const bool normalises = warp < OWN;
  const int row = rank() * OWN + warp, reader = attention_program(row, head);
  const bool there = normalises && row < valid;
  const Place place(warp);
  Row direct = {};  // of the memory the step begins with, but for what comes through the products
  // sums over rows: of the weight and shift of each norm, and of biases
  Row update_sums[3] = {}, read_sums[2] = {}, qkv_sums[9] = {};
  float bias_sums[LAYERS][4] = {};  // of all layers but the last, for this thread's columns

  load_weights(packed);
  make_counters(COUNTERS);

  for (int t = steps - 1, round = 0; t >= 0; t--, round++) {
    const float* before = RESETS ? starts + t * all * F : t == 0 ? memory : memories + (t - 1) * all * F;
    const long r = t * all + base + row, i = r * F + feature;  // this warp's row

    // gates, candidate and its norm: the gradient of the MLP's output to all, and those of two gates a feature
    if (normalises) {
      Row delta = {}, m = {}, weight, shift, x, y;
      Packed kept_candidate, kept_accept, kept_retain, accept_in, retain_in, hidden;
      load(weight, vectors + MLP_WEIGHT + feature), load(shift, vectors + MLP_SHIFT + feature);
      kept_candidate = ask(kept_mlp + ((long)(LAYERS - 1) * steps) * all * F + i, there);
      const float scale = there ? kept_scales[r * 3 + 2] : 0.f;
      const bf16* const in = gates_in + ((long)t * batch + first + row / N) * gate_width;
      float gates[2] = {};
      if (there) load(delta, grad + i);
      if (there && GATES > 0) load(m, before + (base + row) * F + feature);
      if (GATES == 2) {
        kept_accept = ask(kept_gates + r * 2 * F + feature, there);
        kept_retain = ask(kept_gates + r * 2 * F + F + feature, there);
        accept_in = ask(in + feature, there), retain_in = ask(in + F + feature, there);
      } else if (GATES == 1) {
        hidden = ask(kept_hidden + i, there);
        if (there)
          gates[0] = sigmoid(low(kept_gates[r * gate_stride]) + low(in[0])),
          gates[1] = sigmoid(low(kept_gates[r * gate_stride + 1]) + low(in[1]));
      }
      const bool carries = t + 1 < steps && !(RESETS && there && resets[(long)(t + 1) * batch + first + row / N]);
      if (t + 1 < steps) {
        await(PROJECTED, round - 1);
        load(x, (const float*)raw(row, feature * 4));
#pragma unroll
        for (int e = 0; e < E; e++) delta[e] += carries ? direct[e] + x[e] : 0.f;
      }
      unpack(x, kept_candidate);
#pragma unroll
      for (int e = 0; e < E; e++) direct[e] = 0.f;
      Row d_accept, d_retain;
      if (GATES > 0) {
        Row candidate, accept, retain;
#pragma unroll
        for (int e = 0; e < E; e++) {
          candidate[e] = tangent(x[e] * weight[e] + shift[e]);
          if (GATES == 1) accept[e] = gates[0], retain[e] = gates[1];
        }
        if (GATES == 2) {
          unpack(accept, kept_accept), unpack(y, accept_in);
#pragma unroll
          for (int e = 0; e < E; e++) accept[e] = sigmoid(accept[e] + y[e]);
          unpack(retain, kept_retain), unpack(y, retain_in);
#pragma unroll
          for (int e = 0; e < E; e++) retain[e] = sigmoid(retain[e] + y[e]);
        }
#pragma unroll
        for (int e = 0; e < E; e++) {
          d_accept[e] = delta[e] * candidate[e] * accept[e] * (1.f - accept[e]);
          d_retain[e] = delta[e] * m[e] * retain[e] * (1.f - retain[e]);
          direct[e] = delta[e] * retain[e];
          delta[e] *= accept[e] * (1.f - candidate[e] * candidate[e]);
        }
      }
      norm_backward(delta, x, weight, scale, update_sums[0], update_sums[1]);
      send_row_all(a, row, delta, UPDATED);  // what others wait for goes first
      if (GATES == 2) send_row_all(b, row, d_accept, GATED), send_row_all(c, row, d_retain, GATED);
#pragma unroll
      for (int e = 0; e < E; e++) update_sums[2][e] += delta[e];
      if (there) store(d_mlp + ((long)(LAYERS - 1) * steps) * all * F + i, delta);
      if (GATES == 2 && there)
        store(d_gates + r * 2 * F + feature, d_accept), store(d_gates + r * 2 * F + F + feature, d_retain);
      if (GATES == 1) {  // their product with the weights, and tanh, at once
        Row one, two;
        load(one, gate_weight + feature), load(two, gate_weight + F + feature);
        unpack(y, hidden);
        float own[2] = {0.f, 0.f};
#pragma unroll
        for (int e = 0; e < E; e++) own[0] += d_accept[e], own[1] += d_retain[e];
        own[0] = rounded(warp_sum(own[0])), own[1] = rounded(warp_sum(own[1]));
        if (there && lane == 0) *(unsigned*)(d_gates + r * gate_stride) = round2(own[0], own[1]);
#pragma unroll
        for (int e = 0; e < E; e++) direct[e] += (own[0] * one[e] + own[1] * two[e]) * (1.f - y[e] * y[e]);
      }
    } else if (t + 1 < steps) {
      await(PROJECTED, round - 1);
    }
    sent(UPDATED, TILE);
    if (GATES == 2) sent(GATED, 2 * TILE);

    // The MLP, and at last its residual. What is compared with zero, and tanh of the memory, are asked for first. The
    // products with gates are kept for later, in `back`. With two layers there is time for them while the first one's
    // gradients are on their way; with one, or with more, their places would be overwritten by then.
    Sums back[3] = {};
    const auto kept_at = [&](const bf16* from, int row) {
      return row < valid ? *(const Pair*)(from + (t * all + base + row) * F + place.column()) : Pair{0u, 0u};
    };
    Pair hidden[2];
    if (GATES == 2 && place.works()) hidden[0] = kept_at(kept_hidden, place.row(0)), hidden[1] = kept_at(kept_hidden, place.row(1));
    char *from = a, *to = d;
#pragma unroll
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
      const int number = layer == LAYERS - 1 ? UPDATED : HIDDEN + layer + 1;
      Pair active[HALVES];
      if (layer > 0 && place.works())
#pragma unroll
        for (int half = 0; half < HALVES; half++)
          active[half] = kept_at(kept_mlp + (long)(layer - 1) * steps * all * F, place.row(SPLIT == 2 ? place.part : half));
      await(number, round);
      const auto gates_back = [&] {
        await(GATED, round);
        if (!place.works()) return;
        Sums both[2] = {};
        multiply(both, place, LAYERS, [&](int gate) { return gate ? c : b; });
        add(back[0], both[0]), add(back[0], both[1]);
        // The input's share is the same for all slots: their sum, for this program's columns and the rows of this warp.
        for (int i = (place.pair * SPLIT + place.part) * 32 + lane; i < 64 * INPUTS; i += 64 * SPLIT) {
          const int sample = place.tile * INPUTS + i / 64, column = rank() * 32 + i % 32, gate = i / 32 % 2;
          float total = 0.f;
#pragma unroll
          for (int n = 0; n < N; n++) total += low(*at(gate ? c : b, sample * N + n, column));
          if (sample < samples)
            d_gates_in[((long)t * batch + first + sample) * (2 * F) + gate * F + column] = round2(total, 0.f);
        }
      };
      if (GATES == 2 && LAYERS != 2 && layer == LAYERS - 1) gates_back();
      if (place.works()) {
        Sums sums[1] = {};
        multiply(sums, place, LAYERS - 1 - layer, [&](int) { return from; });
        each_four(sums, place, layer % 2, [&](int, int half, int row, int column, float (&x)[4]) {
          if (layer == 0) {
            const Pair around = *(const Pair*)at(a, row, column);
            x[0] += low(around.x), x[1] += high(around.x), x[2] += low(around.y), x[3] += high(around.y);
            send(raw(row, column * 4), four_exact(x), owner(row), HIDDEN);
            return;
          }
          if (!(low(active[half].x) > 0.f)) x[0] = 0.f;
          if (!(high(active[half].x) > 0.f)) x[1] = 0.f;
          if (!(low(active[half].y) > 0.f)) x[2] = 0.f;
          if (!(high(active[half].y) > 0.f)) x[3] = 0.f;
          send_all(at(to, row, column), four(x), HIDDEN + layer);
          if (row >= valid) return;
          *(Pair*)(d_mlp + (((long)(layer - 1) * steps + t) * all + base + row) * F + column) = four(x);
#pragma unroll
          for (int k = 0; k < 4; k++) bias_sums[layer - 1][k] += x[k];
        });
      }
      sent(HIDDEN + layer, layer == 0 ? OWN * F * 4 : TILE);
      if (GATES == 2 && LAYERS == 2 && layer == 1) gates_back();
      from = to, to = to == d ? b : d;
    }

    // The attention's residual and norm: the gradient of what was read, with queries, keys and values, weighted, to who
    // has their head.
    Packed query, key, value;
    if (normalises) {
      const bf16* const qkv = kept_qkv + r * Q + in_head;
      query = ask(qkv, there), key = ask(qkv + V, there), value = ask(qkv + 2 * V, there);
      const Packed kept = ask(kept_normed + i, there);
      const float scale = there ? kept_scales[r * 3 + 1] : 0.f;
      Row x, weight, shift, delta;
      load(weight, vectors + QKV_WEIGHT + in_head), load(shift, vectors + QKV_SHIFT + in_head);
      unpack(x, query);
#pragma unroll
      for (int e = 0; e < E; e++) delta[e] = (x[e] * weight[e] + shift[e]) * (float)logit_scale;
      Row weighted_key, weighted_value;
      load(weight, vectors + QKV_WEIGHT + V + in_head), unpack(x, key);
#pragma unroll
      for (int e = 0; e < E; e++) weighted_key[e] = x[e] * weight[e];
      load(weight, vectors + QKV_WEIGHT + 2 * V + in_head), unpack(x, value);
#pragma unroll
      for (int e = 0; e < E; e++) weighted_value[e] = x[e] * weight[e];
      load(weight, vectors + READ_WEIGHT + feature), unpack(x, kept);
      await(HIDDEN, round);
      send_row(b, row, delta, reader, ATTENDED);
      send_row(c, row, weighted_key, reader, ATTENDED), send_row(d, row, weighted_value, reader, ATTENDED);
      load(delta, (const float*)raw(row, feature * 4));
      norm_backward(delta, x, weight, scale, read_sums[0], read_sums[1]);
      send_row(a, row, delta, reader, ATTENDED);
#pragma unroll
      for (int e = 0; e < E; e++) direct[e] += delta[e];
    } else {
      await(HIDDEN, round);
    }
    sent(ATTENDED, attentions_here() * 4 * ATTENTION_BYTES);

    // Attention, three warps to a head of 16 rows: one for queries, one for the rows' keys and values, one for the
    // inputs'. All wait for the first one's inner products.
#pragma unroll 1
    for (int turn = 0; turn * (WARPS / 4) < attentions_here(); turn++) {
      const int local = turn * (WARPS / 4) + warp / 4, unit = rank() + local * CLUSTER, part = warp % 4;
      const bool attends = local < attentions_here() && part < 3;
      const Head at{unit / HEADS * 16, unit % HEADS, valid, inputs + ((long)t * batch + first) * Q, vectors};
      const float* const total = kept_total + (t * all + base) * HEADS;
      float* const inner = (float*)(shared_memory() + INNER) + local * 16;
      const auto inner_of = [&](int tile, int i) { return inner[at.query(tile, i) % 16]; };
      const auto give = [&](int half, int part, int sum, int tile, float x, float y) {
        const int row = at.row_of(half);
        send(raw(row, at.feature(part, sum, tile) * 2), round2(x, y), owner(row), READ);
      };
      Fragment keys[SUMS], values[SUMS];
      if (attends && part != 1) at.inputs_of(keys, 1), at.inputs_of(values, 2);
      if (attends && part == 0) {
        float totals[2];
        at.totals_of_rows(totals, total);
        await(ATTENDED, round);
        Fragment queries[SUMS];
#pragma unroll
        for (int sum = 0; sum < SUMS; sum++) at.of(b).as_left(queries[sum], sum);
        queries_backward(
            at.of(a), at.of(c), at.of(d), at, queries, keys, values, totals, (float)logit_scale,
            [&](int half, float x) {
              if (lane % 4 == 0) inner[at.row_of(half) % 16] = x;
            },
            [&](int half, int sum, int tile, float x, float y) { give(half, 0, sum, tile, x, y); }, [&] { __syncthreads(); });
        continue;
      }
      float totals[2][2];
      if (attends) at.totals_of_columns(totals, total);
      await(ATTENDED, round);
      if (attends && part == 1) {
#pragma unroll
        for (int sum = 0; sum < SUMS; sum++)
          at.of(c).as_left(keys[sum], sum), at.of(d).as_left(values[sum], sum);
        keys_backward<false>(at.of(a), at.of(b), at, keys, values, totals, inner_of, give, [&] { __syncthreads(); });
      } else if (attends) {
        keys_backward<true>(at.of(a), at.of(b), at, keys, values, totals, inner_of,
                            [&](int half, int part, int sum, int tile, float x, float y) {
                              bf16* const to = d_inputs + ((long)t * batch + first) * Q + at.input_at(half, part, sum, tile);
                              *(unsigned*)to = round2(x, y);
                              if (part == 1) *(unsigned*)(to - V) = 0u;  // nobody reads what the input would have attended to
                            },
                            [&] { __syncthreads(); });
        // The rows' owners overwrite what was read here: they must know that it was.
        if (lane < 16) send(raw(at.row + lane, 3 * F * 2 + at.head * 4), 0u, owner(at.row + lane), READ);
      } else {
        __syncthreads();
      }
    }
    sent(READ, OWN * (3 * F * 2 + HEADS * 4));

    // the norm of queries, keys and values
    if (normalises) {
      Row delta[3], x;
      float mean = 0.f, along = 0.f;
      const float scale = there ? kept_scales[r * 3] : 0.f;
      const auto normed = [&](int part) { unpack(x, part == 0 ? query : part == 1 ? key : value); };
      await(READ, round);
#pragma unroll
      for (int part = 0; part < 3; part++) {
        Row weight;
        load(weight, vectors + QKV_WEIGHT + part * V + in_head);
        load(delta[part], (const bf16*)raw(row, (in_head + part * V) * 2)), normed(part);
#pragma unroll
        for (int e = 0; e < E; e++) {
          qkv_sums[part][e] += delta[part][e] * x[e], qkv_sums[3 + part][e] += delta[part][e];
          delta[part][e] *= weight[e], mean += delta[part][e], along += delta[part][e] * x[e];
        }
      }
      mean = warp_sum(mean) / Q, along = warp_sum(along) / Q;
#pragma unroll
      for (int part = 0; part < 3; part++) {
        normed(part);
#pragma unroll
        for (int e = 0; e < E; e++) {
          delta[part][e] = (delta[part][e] - mean - x[e] * along) * scale;
          qkv_sums[6 + part][e] += delta[part][e];
        }
        send_row_all(b + part * TILE, row, delta[part], NORMED);
        if (there) store(d_qkv + r * Q + in_head + part * V, delta[part]);
      }
    } else {
      await(READ, round);
    }
    sent(NORMED, 3 * TILE);

    // products back to the memory
    await(NORMED, round);
    if (place.works()) {
      if (GATES == 2)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const Pair h = hidden[half];
          Sums& gates = back[0];
          gates[0][2 * half] *= 1.f - low(h.x) * low(h.x), gates[0][2 * half + 1] *= 1.f - high(h.x) * high(h.x);
          gates[1][2 * half] *= 1.f - low(h.y) * low(h.y), gates[1][2 * half + 1] *= 1.f - high(h.y) * high(h.y);
        }
      multiply(back, place, PRODUCTS - 3, [&](int part) { return b + part * TILE; });
      Sums whole[1] = {};
      add(whole[0], back[0]), add(whole[0], back[1]), add(whole[0], back[2]);
      each_four(whole, place, 2, [&](int, int, int row, int column, float (&x)[4]) {
        send(raw(row, column * 4), four_exact(x), owner(row), PROJECTED);
      });
    }
    sent(PROJECTED, OWN * F * 4);
  }
  await(PROJECTED, steps - 1);
  if (there) {
    Row x;
    load(x, (const float*)raw(row, feature * 4));
#pragma unroll
    for (int e = 0; e < E; e++) x[e] += direct[e];
    store(carry + (base + row) * F + feature, x);
  }
  meet();  // nobody leaves while others may still send to it; and the weights' place is free

  // sums over this program's rows, one after the other, then over the tiles of its columns
  float* const sums = (float*)(shared_memory() + WEIGHTS);
  const auto keep = [&](const Row& x, int where) { store(sums + warp * COLUMNS + where + feature, x); };
  if (normalises) {
#pragma unroll
    for (int part = 0; part < 3; part++) {  // in the order of a row: queries, keys and values of each head side by side
      store(sums + warp * COLUMNS + QKV_WEIGHT + part * V + in_head, qkv_sums[part]);
      store(sums + warp * COLUMNS + QKV_SHIFT + part * V + in_head, qkv_sums[3 + part]);
      store(sums + warp * COLUMNS + QKV_BIAS + part * V + in_head, qkv_sums[6 + part]);
    }
    keep(read_sums[0], READ_WEIGHT), keep(read_sums[1], READ_SHIFT);
    keep(update_sums[0], MLP_WEIGHT), keep(update_sums[1], MLP_SHIFT);
    keep(update_sums[2], MLP_BIAS + (LAYERS - 1) * F);
  }
  __syncthreads();
  float* const own = totals + (long)blockIdx.x * COLUMNS;
  for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
    if (i >= MLP_BIAS && i < MLP_BIAS + (LAYERS - 1) * F) continue;
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < OWN; w++) total += sums[w * COLUMNS + i];
    own[i] = total;
  }
  __syncthreads();
#pragma unroll
  for (int layer = 0; layer < LAYERS - 1; layer++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float total = bias_sums[layer][k];
      total += exchange(total, 4), total += exchange(total, 8), total += exchange(total, 16);
      if (lane < 4) sums[(layer * WARPS + warp) * 16 + lane * 4 + k] = total;  // columns of this warp's pair
    }
  __syncthreads();
  for (int i = threadIdx.x; i < (LAYERS - 1) * 32; i += THREADS) {
    const int layer = i / 32, pair = i % 32 / 16;
    float total = 0.f;
    for (int w = 0; w < MT * 2 * SPLIT; w++)
      if (w / SPLIT % 2 == pair) total += sums[(layer * WARPS + w) * 16 + i % 16];
    own[MLP_BIAS + layer * F + rank() * 32 + i % 32] = total;
  }
}
