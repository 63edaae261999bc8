// A whole sequence, forward, with weights that stay: as forward.cu, which has the same arguments.

enum { PROJECTED, GATED, NORMED, READ, ATTENDED, HIDDEN, UPDATED = HIDDEN + LAYERS, COUNTERS };  // kinds of messages

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) resident_forward(
    const float* memory,                   // [B, N, F]
    const bf16* __restrict__ inputs,       // [T, B, Q], normalised
    const bf16* __restrict__ gates_in,     // [T, B, gate_width]
    const bool* resets,                    // [T, B]
    const void* packed,                    // the products' weights
    const bf16* __restrict__ gate_weight,  // [2, F], for two gates a slot
    const float* __restrict__ vectors,     // one after the other
    float* memories,                       // [T, B, N, F]
    float* starts,                         // the same, where there are resets
    bf16* __restrict__ kept_rows, bf16* __restrict__ kept_hidden, bf16* __restrict__ kept_qkv,
    bf16* __restrict__ kept_gates, bf16* __restrict__ kept_attended, bf16* __restrict__ kept_mlp,
    float* __restrict__ kept_scales, bf16* __restrict__ kept_normed, float* __restrict__ kept_total, int steps, int batch, int share,
    int gate_width, int gate_stride, double logit_scale) {
  // The memory a step begins with, as it is multiplied, is in a, its tanh in d; then queries, keys and values in a, b, c;
  // what attention made of the memory in a; the MLP's layers in b, c, b ...
  char *const a = shared_memory() + TILES, *const b = a + TILE, *const c = b + TILE, *const d = c + TILE;
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const int first = blockIdx.x / CLUSTER * share;  // sample
  const int valid = min(share, batch - first) * N;
  const long all = (long)batch * N, base = (long)first * N;  // rows of a step; of those, this cluster's first
  const int feature = lane * E, head = feature / V, in_head = head * 3 * V + feature % V;  // this lane's first

  // This warp's row, its memory, and its head of 16 rows; what is behind the last sample is computed and not kept.
  const bool normalises = warp < OWN, attends = rank() + warp * CLUSTER < ATTENTIONS;
  const int row = rank() * OWN + warp;
  const bool there = normalises && row < valid;
  const int unit = rank() + warp * CLUSTER, reader = attention_program(row, head);
  Row state = {};
  const Place place(warp);

  load_weights(packed);
  make_counters(COUNTERS);

  // The row begins step t with `state`, unless an episode does.
  const auto publish = [&](int t, bool begins) {
    const long i = (t * all + base + row) * F + feature;
    Row hidden;
#pragma unroll
    for (int e = 0; e < E; e++) {
      if (begins) state[e] = feature + e == row % N ? 1.f : 0.f;
      hidden[e] = tangent(state[e]);
    }
    send_row_all(a, row, state, UPDATED);
    if (GATES == 2) send_row_all(d, row, hidden, UPDATED);
    if (!there) return;
    if (RESETS) store(starts + i, state);
    if (KEEP) {
      store(kept_rows + i, state);
      if (GATES > 0) store(kept_hidden + i, hidden);
    }
  };
  const auto begins_at = [&](int t) { return RESETS && there && t < steps && resets[(long)t * batch + first + row / N]; };
  constexpr int UPDATED_BYTES = (GATES == 2 ? 2 : 1) * TILE;

  if (normalises) {
    if (there) load(state, memory + (base + row) * F + feature);
    publish(0, begins_at(0));
  }
  sent(UPDATED, UPDATED_BYTES);

  for (int t = 0; t < steps; t++) {
    // keys, values and queries, and gates, as they come, to who normalises them
    await(UPDATED, t);
    if (place.works()) {
      Sums sums[3] = {};
      multiply(sums, place, 0, [&](int) { return a; });
      each_four(sums, place, 0, [&](int part, int, int row, int column, float (&x)[4]) {
        const float4 bias = *(const float4*)(vectors + QKV_BIAS + (part + 1) % 3 * V + column / V * 3 * V + column % V);
        x[0] += bias.x, x[1] += bias.y, x[2] += bias.z, x[3] += bias.w;
        send(raw(row, (part * F + column) * 2), four_halves(x), owner(row), PROJECTED);
      });
    }
    sent(PROJECTED, OWN * 3 * F * 2);
    if (GATES == 2) {
      if (place.works()) {
        Sums sums[2] = {};
        multiply(sums, place, 3 + LAYERS, [&](int) { return d; });
        each_four(sums, place, 3, [&](int gate, int, int row, int column, float (&x)[4]) {
          send(raw(row, ((3 + gate) * F + column) * 2), four_halves(x), owner(row), GATED);
        });
      }
      sent(GATED, OWN * 2 * F * 2);
    }

    // their norm; the weights are centred, so there is no mean to take off. They go, weighted, to who has their head
    if (normalises) {
      Row query_weight, query_shift, key_weight, value_weight, q, k, v;
      load(query_weight, vectors + QKV_WEIGHT + in_head), load(query_shift, vectors + QKV_SHIFT + in_head);
      load(key_weight, vectors + QKV_WEIGHT + V + in_head), load(value_weight, vectors + QKV_WEIGHT + 2 * V + in_head);
      await(PROJECTED, t);
      load_raw_halves(k, raw(row, feature * 2)), load_raw_halves(v, raw(row, (F + feature) * 2));
      load_raw_halves(q, raw(row, (2 * F + feature) * 2));
      float squares = 0.f;
#pragma unroll
      for (int e = 0; e < E; e++) squares += q[e] * q[e] + k[e] * k[e] + v[e] * v[e];
      const float scale = reciprocal_root(warp_sum(squares) / Q + EPSILON);
      Row shifted, weighted_k, weighted_v;
#pragma unroll
      for (int e = 0; e < E; e++) {
        q[e] = rounded(q[e] * scale), k[e] = rounded(k[e] * scale), v[e] = rounded(v[e] * scale);
        shifted[e] = (q[e] * query_weight[e] + query_shift[e]) * (float)logit_scale;
        weighted_k[e] = k[e] * key_weight[e], weighted_v[e] = v[e] * value_weight[e];
      }
      send_row(a, row, shifted, reader, NORMED);
      send_row(b, row, weighted_k, reader, NORMED), send_row(c, row, weighted_v, reader, NORMED);
      if (KEEP && there) {
        bf16* qkv = kept_qkv + (t * all + base + row) * Q + in_head;
        store(qkv, q), store(qkv + V, k), store(qkv + 2 * V, v);
        if (lane == 0) kept_scales[(t * all + base + row) * 3] = scale;
      }
    } else {
      await(PROJECTED, t);
    }
    sent(NORMED, attentions_here() * 3 * ATTENTION_BYTES);

    // attention: what was read, to who normalises it
    if (attends) {
      const Head at{unit / HEADS * 16, unit % HEADS, valid, inputs + ((long)t * batch + first) * Q, vectors};
      Fragment input_keys[SUMS], input_values[SUMS];
      at.inputs_of(input_keys, 1), at.inputs_of(input_values, 2);
      await(NORMED, t);
      attend(at.of(a), at.of(b), at.of(c), at, input_keys, input_values,
             KEEP ? kept_total + (t * all + base) * HEADS : nullptr, [&](int half, int sum, int tile, float x, float y) {
               const int row = at.row_of(half);
               send(raw(row, at.column_of(sum, tile) * 2), halves(x, y), owner(row), READ);
             });
    } else {
      await(NORMED, t);
    }
    sent(READ, OWN * F * 2);

    // residual and norm
    Row attended;
    if (normalises) {
      Row weight, shift, read;
      load(weight, vectors + READ_WEIGHT + feature), load(shift, vectors + READ_SHIFT + feature);
      await(READ, t);
      load_raw_halves(read, raw(row, feature * 2));
#pragma unroll
      for (int e = 0; e < E; e++) read[e] += state[e];
      const float scale = normalize(read);
#pragma unroll
      for (int e = 0; e < E; e++) attended[e] = rounded(read[e] * weight[e] + shift[e]);
      send_row_all(a, row, attended, ATTENDED);
      if (KEEP && there) {
        const long i = (t * all + base + row) * F + feature;
        store(kept_normed + i, read), store(kept_attended + i, attended);
        if (lane == 0) kept_scales[(t * all + base + row) * 3 + 1] = scale;
      }
    } else {
      await(READ, t);
    }
    sent(ATTENDED, TILE);

    // the MLP, its last layer without bias
    await(ATTENDED, t);
    char *from = a, *to = b;
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
      const bool last = layer == LAYERS - 1;
      if (place.works()) {
        Sums sums[1] = {};
        const float4 bias = *(const float4*)(vectors + MLP_BIAS + layer * F + place.column());
        multiply(sums, place, 3 + layer, [&](int) { return from; });
        each_four(sums, place, SLOTS - 2 + layer % 2, [&](int, int, int row, int column, float (&x)[4]) {
          if (last) {
            send(raw(row, column * 2), four_halves(x), owner(row), HIDDEN + layer);
            return;
          }
          x[0] = fmaxf(x[0] + bias.x, 0.f), x[1] = fmaxf(x[1] + bias.y, 0.f);
          x[2] = fmaxf(x[2] + bias.z, 0.f), x[3] = fmaxf(x[3] + bias.w, 0.f);
          send_all(at(to, row, column), four(x), HIDDEN + layer);
          if (KEEP && row < valid)
            *(Pair*)(kept_mlp + (((long)layer * steps + t) * all + base + row) * F + column) = four(x);
        });
      }
      sent(HIDDEN + layer, last ? OWN * F * 2 : TILE);
      if (!last) await(HIDDEN + layer, t);
      from = to, to = to == b ? c : b;
    }

    // its residual and norm, gates, and the memory of the next step
    if (normalises) {
      Row bias, weight, shift, x, accept, retain;
      load(bias, vectors + MLP_BIAS + (LAYERS - 1) * F + feature);
      load(weight, vectors + MLP_WEIGHT + feature), load(shift, vectors + MLP_SHIFT + feature);
      const long r = t * all + base + row;
      const bf16* const in = gates_in + ((long)t * batch + first + row / N) * gate_width;
      Packed accept_in = {}, retain_in = {};
      if (GATES == 2) {
        accept_in = ask(in + feature, there), retain_in = ask(in + F + feature, there);
        await(GATED, t);
        load_raw_halves(accept, raw(row, (3 * F + feature) * 2)), load_raw_halves(retain, raw(row, (4 * F + feature) * 2));
        if (KEEP && there) store(kept_gates + r * 2 * F + feature, accept), store(kept_gates + r * 2 * F + F + feature, retain);
        unpack(x, accept_in);
#pragma unroll
        for (int e = 0; e < E; e++) accept[e] = sigmoid(accept[e] + x[e]);
        unpack(x, retain_in);
#pragma unroll
        for (int e = 0; e < E; e++) retain[e] = sigmoid(retain[e] + x[e]);
      } else if (GATES == 1) {
        float gates[2];
#pragma unroll
        for (int g = 0; g < 2; g++) {
          Row w;
          load(w, gate_weight + g * F + feature);
          float sum = 0.f;
#pragma unroll
          for (int e = 0; e < E; e++) sum += rounded(tangent(state[e])) * w[e];
          gates[g] = rounded(warp_sum(sum));
          if (KEEP && there && lane == 0) kept_gates[r * gate_stride + g] = round2(gates[g], 0.f);
          gates[g] = sigmoid(gates[g] + (there ? low(in[g]) : 0.f));
        }
#pragma unroll
        for (int e = 0; e < E; e++) accept[e] = gates[0], retain[e] = gates[1];
      }
      const bool anew = begins_at(t + 1);
      await(HIDDEN + LAYERS - 1, t);
      load_raw_halves(x, raw(row, feature * 2));
#pragma unroll
      for (int e = 0; e < E; e++) x[e] += attended[e] + bias[e];
      const float scale = normalize(x);
      if (KEEP && there) {
        store(kept_mlp + (((long)(LAYERS - 1) * steps + t) * all + base + row) * F + feature, x);
        if (lane == 0) kept_scales[r * 3 + 2] = scale;
      }
#pragma unroll
      for (int e = 0; e < E; e++) {
        x[e] = x[e] * weight[e] + shift[e];
        state[e] = GATES == 0 ? x[e] : accept[e] * tangent(x[e]) + retain[e] * state[e];
      }
      if (there) store(memories + r * F + feature, state);
      if (t + 1 < steps) publish(t + 1, anew);
    } else {
      await(HIDDEN + LAYERS - 1, t);
    }
    if (t + 1 < steps) sent(UPDATED, UPDATED_BYTES);
  }
  meet();  // nobody leaves while others may still send to it
}
