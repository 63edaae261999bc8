// A whole sequence, backward, by groups (wide.cuh); what it reads and writes is what sequence_backward does.

// Products in the order MLP, last first; gates; q, k, v.
constexpr int COLUMNS = MLP_BIAS + LAYERS * F;

// Of twice LEFT numbers a lane, the sums with the lane's so far away: half of them each.
template <int LEFT>
__device__ __forceinline__ void share_sums(float (&sums)[LEFT], const float (&x)[2 * LEFT], int lanes) {
  const bool second = threadIdx.x & lanes;
#pragma unroll
  for (int i = 0; i < LEFT; i++) {
    const float keep = second ? x[LEFT + i] : x[i], give = second ? x[i] : x[LEFT + i];
    sums[i] = keep + exchange(give, lanes);
  }
}
// Of eight numbers a lane, one of their sums over every fourth lane: lane / 4 says which.
__device__ __forceinline__ float scattered_sum(const Run& x) {
  float four[4], two[2], one[1];
  share_sums(four, x, 16), share_sums(two, four, 8), share_sums(one, two, 4);
  return one[0];
}
// Sums over the rows of a warp: gradients of biases and norms. `totals` are the warp's own, and each lane's place in them too:
// no order of additions but one.
__device__ __forceinline__ void add_columns(float* totals, const Run& both_rows) {  // where the lane's run begins
  atomicAdd(totals + threadIdx.x % 32 / 4, scattered_sum(both_rows));
}
// The sum over a sample's slots of a row's eight, as bf16, to where the lane's run of the sample begins; `other` has the warp's
// other rows, for sixteen slots.
__device__ __forceinline__ void sum_slots(bf16* to, const Run& x, const Run& other, bool there) {
  const int lane = threadIdx.x % 32;
  if constexpr (N >= 8) {
    Run both;
#pragma unroll
    for (int e = 0; e < 8; e++) both[e] = x[e] + (N == 16 ? other[e] : 0.f);
    const float sum = scattered_sum(both);
    if (there) to[lane / 4] = (bf16)round2(sum, 0.f);
  } else if constexpr (N == 4) {
    float four[4], two[2];
    share_sums(four, x, 8), share_sums(two, four, 4);
    if (there) *(unsigned*)(to + lane / 4 % 4 * 2) = round2(two[0], two[1]);
  } else if constexpr (N == 2) {
    float four[4];
    share_sums(four, x, 4);
    if (there) *(Pair*)(to + lane / 4 % 2 * 4) = Pair{round2(four[0], four[1]), round2(four[2], four[3])};
  } else if (there) {
    *(Quad*)to = pack(x);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_backward(
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
    bf16* d_qkv, bf16* d_gates, bf16* d_mlp,
    float* totals,          // [programs, warps that multiply, COLUMNS], zero before
    int steps, int batch, int share, int gate_width, int gate_stride, double logit_scale) {
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const int first = blockIdx.x * share;  // sample
  const long all = (long)batch * N;      // rows of a step
  Ring ring = make_ring();
  if (warp / 4 == GROUPS) {
    give_registers();
    if (threadIdx.x % 128 == 0)
#pragma unroll 1
      for (int t = 0; t < steps; t++) {
        const char* from = (const char*)packed;
#pragma unroll 1
        for (int i = 0; i < PRODUCTS; i++) ask_product<32>(ring, from);
      }
    return;
  }
  take_registers();
  const Own own = own_of(first, min(share, batch - first));
  const unsigned operands = shared_address(own.tile);
  float* const sums_of = totals + ((long)blockIdx.x * 4 * GROUPS + warp) * COLUMNS;

#pragma unroll 1
  for (int t = steps - 1; t >= 0; t--) {
    const float* const vectors = anew(all_vectors);
    const float* const before = RESETS ? starts + t * all * F : t == 0 ? memory : memories + (t - 1) * all * F;
    const long step = t * all * F, last = ((long)(LAYERS - 1) * steps + t) * all * F;
    const auto scales = [&](int half, int which) {
      return own.there(half) ? kept_scales[(t * all + own.all_of(half)) * 3 + which] : 0.f;
    };
    const auto load_bf16 = [&](Run& x, const bf16* p, int half) {
      unpack(x, own.there(half) ? *(const Quad*)p : Quad{0, 0, 0, 0});
    };
    // The end of a norm's backward pass: d, of the normed row and weighted, becomes that of the raw one. x is the normed row.
    const auto finish_norm = [&](Run& x, const Sums& d, int run, int half, const float (&mean)[2], const float (&along)[2], float scale) {
#pragma unroll
      for (int e = 0; e < 8; e++) x[e] = (part_of(d, run, half, e) - mean[half] - x[e] * along[half]) * scale;
    };

    {  // gates, candidate and its norm: the gradient of the MLP's output into the tile
      Sums d;
      float mean[2] = {}, along[2] = {}, gates[2][2], d_two[2][2] = {};  // gate, half
      bool goes_on[2];  // whether the next step began with this one's memory
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        const int sample = first + own.row_of(half) / N;
        goes_on[half] = own.there(half) && t + 1 < steps && !(RESETS && resets[(long)(t + 1) * batch + sample]);
        if (GATES == 1 && own.there(half))
#pragma unroll
          for (int g = 0; g < 2; g++)
            gates[g][half] = sigmoid(low(kept_gates[(t * all + own.all_of(half)) * gate_stride + g]) +
                                     low(gates_in[((long)t * batch + sample) * gate_width + g]));
      }
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        Run weight, sum_weight = {}, sum_shift = {}, d_accept[2] = {}, d_retain[2] = {};
        load_run(weight, vectors + MLP_WEIGHT + own.feature(run));
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          Run x, y = {};
          load_bf16(x, kept_mlp + last + own.at(run, half), half);
          if (own.there(half)) {
            load_run(y, grad + step + own.at(run, half));
            Run direct = {};
            if (goes_on[half]) {
              load_run(direct, carry + own.at(run, half));
#pragma unroll
              for (int e = 0; e < 8; e++) y[e] += direct[e], direct[e] = 0.f;
            }
            if (GATES > 0) {
              const long r = t * all + own.all_of(half);
              const bf16* const in = gates_in + ((long)t * batch + first + own.row_of(half) / N) * gate_width;
              Run shift, m, accept, retain, of_input;
              load_run(shift, vectors + MLP_SHIFT + own.feature(run)), load_run(m, before + own.at(run, half));
              if (GATES == 2) {
                const bf16* const kept = kept_gates + r * 2 * F + own.feature(run);
                unpack(accept, *(const Quad*)kept), unpack(of_input, *(const Quad*)(in + own.feature(run)));
#pragma unroll
                for (int e = 0; e < 8; e++) accept[e] = sigmoid(accept[e] + of_input[e]);
                unpack(retain, *(const Quad*)(kept + F)), unpack(of_input, *(const Quad*)(in + F + own.feature(run)));
#pragma unroll
                for (int e = 0; e < 8; e++) retain[e] = sigmoid(retain[e] + of_input[e]);
              } else {
#pragma unroll
                for (int e = 0; e < 8; e++) accept[e] = gates[0][half], retain[e] = gates[1][half];
              }
#pragma unroll
              for (int e = 0; e < 8; e++) {
                const float candidate = tangent(x[e] * weight[e] + shift[e]);
                d_accept[half][e] = y[e] * candidate * accept[e] * (1.f - accept[e]);
                d_retain[half][e] = y[e] * m[e] * retain[e] * (1.f - retain[e]);
                direct[e] = y[e] * retain[e];
                y[e] *= accept[e] * (1.f - candidate * candidate);
                d_two[0][half] += d_accept[half][e], d_two[1][half] += d_retain[half][e];
              }
              if (GATES == 2) {
                bf16* const to = d_gates + r * 2 * F + own.feature(run);
                *(Quad*)to = pack(d_accept[half]), *(Quad*)(to + F) = pack(d_retain[half]);
              }
            }
            store_run(carry + own.at(run, half), direct);
          }
#pragma unroll
          for (int e = 0; e < 8; e++) {
            sum_weight[e] += y[e] * x[e], sum_shift[e] += y[e];
            y[e] *= weight[e], mean[half] += y[e], along[half] += y[e] * x[e];
            part_of(d, run, half, e) = y[e];
          }
        }
        add_columns(sums_of + MLP_WEIGHT + own.feature(run), sum_weight);
        add_columns(sums_of + MLP_SHIFT + own.feature(run), sum_shift);
        if (GATES == 2)  // the input's share is the same for all slots
#pragma unroll
          for (int half = 0; half < (N == 16 ? 1 : HALVES); half++) {
            bf16* const to = d_gates_in + ((long)t * batch + first + own.row_of(half) / N) * (2 * F) + own.feature(run);
            sum_slots(to, d_accept[half], d_accept[1], own.there(half));
            sum_slots(to + F, d_retain[half], d_retain[1], own.there(half));
          }
      }
      float scale[2];
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        mean[half] = quad_sum(mean[half]) / F, along[half] = quad_sum(along[half]) / F, scale[half] = scales(half, 2);
        if (GATES == 1) {
          d_two[0][half] = rounded(quad_sum(d_two[0][half])), d_two[1][half] = rounded(quad_sum(d_two[1][half]));
          if (lane % 4 == 0 && own.there(half))
            *(unsigned*)(d_gates + (t * all + own.all_of(half)) * gate_stride) = round2(d_two[0][half], d_two[1][half]);
        }
      }
      Words words;
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        Run bias = {};
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          Run x;
          load_bf16(x, kept_mlp + last + own.at(run, half), half);
          finish_norm(x, d, run, half, mean, along, scale[half]);
#pragma unroll
          for (int e = 0; e < 8; e++) bias[e] += x[e];
          round_run(x, words, run, half);
          if (!own.there(half)) continue;
          *(Quad*)(d_mlp + last + own.at(run, half)) = quad_of(words, run, half);
          if (GATES == 1) {  // two gates' product with their weights, and tanh
            Run direct, hidden, w;
            load_run(direct, carry + own.at(run, half));
            unpack(hidden, *(const Quad*)(kept_hidden + step + own.at(run, half)));
#pragma unroll
            for (int g = 0; g < 2; g++) {
              unpack(w, *(const Quad*)(gate_weight + g * F + own.feature(run)));
#pragma unroll
              for (int e = 0; e < 8; e++) direct[e] += d_two[g][half] * w[e] * (1.f - hidden[e] * hidden[e]);
            }
            store_run(carry + own.at(run, half), direct);
          }
        }
        add_columns(sums_of + MLP_BIAS + (LAYERS - 1) * F + own.feature(run), bias);
      }
      own.replace(words);
    }

    // the MLP
#pragma unroll 1
    for (int layer = LAYERS - 1; layer > 0; layer--) {
      const long offset = ((long)(layer - 1) * steps + t) * all * F;
      Sums sums;
      multiply(sums, ring, operands);
      Words words;
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        Run bias = {};
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          Run active;
          load_bf16(active, kept_mlp + offset + own.at(run, half), half);
#pragma unroll
          for (int e = 0; e < 8; e++) {
            active[e] = active[e] > 0.f ? part_of(sums, run, half, e) : 0.f;
            bias[e] += active[e];
          }
          round_run(active, words, run, half);
          if (own.there(half)) *(Quad*)(d_mlp + offset + own.at(run, half)) = quad_of(words, run, half);
        }
        add_columns(sums_of + MLP_BIAS + (layer - 1) * F + own.feature(run), bias);
      }
      own.replace(words);
    }

    {  // its residual, and the attention's residual and norm: the gradient of what was read into the tile, each thread's own
      Sums d;
      multiply(d, ring, operands);
      float mean[2] = {}, along[2] = {}, scale[2];
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        Run weight, sum_weight = {}, sum_shift = {};
        load_run(weight, vectors + READ_WEIGHT + own.feature(run));
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          Run x, y;
          load_bf16(x, kept_normed + step + own.at(run, half), half);
          load_bf16(y, d_mlp + last + own.at(run, half), half);
#pragma unroll
          for (int e = 0; e < 8; e++) {
            float& to = part_of(d, run, half, e);
            y[e] = own.there(half) ? y[e] + to : 0.f;
            sum_weight[e] += y[e] * x[e], sum_shift[e] += y[e];
            y[e] *= weight[e], mean[half] += y[e], along[half] += y[e] * x[e];
            to = y[e];
          }
        }
        add_columns(sums_of + READ_WEIGHT + own.feature(run), sum_weight);
        add_columns(sums_of + READ_SHIFT + own.feature(run), sum_shift);
      }
#pragma unroll
      for (int half = 0; half < HALVES; half++)
        mean[half] = quad_sum(mean[half]) / F, along[half] = quad_sum(along[half]) / F, scale[half] = scales(half, 1);
      meet_group(own.group);  // all have multiplied
      each_run([&](int run, int half) {
        Run x;
        load_bf16(x, kept_normed + step + own.at(run, half), half);
        finish_norm(x, d, run, half, mean, along, scale[half]);
#pragma unroll
        for (int j = 0; j < 4; j++) *word_at(own.tile, 4 * run + j, half) = round2(x[2 * j], x[2 * j + 1]);
        if (!own.there(half)) return;
        Run direct;
        load_run(direct, carry + own.at(run, half));
#pragma unroll
        for (int e = 0; e < 8; e++) direct[e] += x[e];
        store_run(carry + own.at(run, half), direct);
      });
    }

    // attention, SLICE features at a time
    constexpr int TILES = SLICE / 8;  // of each of queries, keys and values
    const auto qkv_at = [&](int part, int feature, int half) {
      return (t * all + own.all_of(half)) * Q + feature / V * 3 * V + part * V + feature % V;
    };
    float mean[2] = {}, along[2] = {};  // of the norm of queries, keys and values
#pragma unroll 1
    for (int slice = 0; slice < SLICES; slice++) {
      unsigned words[3][TILES][2] = {}, reads[TILES][2] = {};
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int half = 0; half < HALVES; half++) reads[i][half] = *word_at(own.tile, slice * TILES + i, half);
#pragma unroll
      for (int part = 0; part < 3; part++)
#pragma unroll
        for (int run = 0; run < TILES / 4; run++) {
          const int feature = slice * SLICE + own.feature(run), i = feature / V * 3 * V + part * V + feature % V;
          Run weight, shift;
          load_run(weight, vectors + QKV_WEIGHT + i);
          if (part == 0) load_run(shift, vectors + QKV_SHIFT + i);
#pragma unroll
          for (int half = 0; half < HALVES; half++) {
            Run x;
            load_bf16(x, kept_qkv + qkv_at(part, feature, half), half);
#pragma unroll
            for (int e = 0; e < 8; e++) {
              x[e] *= weight[e];
              if (part == 0) x[e] = (x[e] + shift[e]) * (float)logit_scale;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) words[part][4 * run + j][half] = round2(x[2 * j], x[2 * j + 1]);
          }
        }
      // what of the norm's backward pass can be done for a part of the row: kept as bf16
      const auto take = [&](int part, const float (&d)[TILES][4]) {
#pragma unroll
        for (int run = 0; run < TILES / 4; run++) {
          const int feature = slice * SLICE + own.feature(run), i = feature / V * 3 * V + part * V + feature % V;
          Run weight, sum_weight = {}, sum_shift = {};
          load_run(weight, vectors + QKV_WEIGHT + i);
#pragma unroll
          for (int half = 0; half < HALVES; half++) {
            Run x, y;
            load_bf16(x, kept_qkv + qkv_at(part, feature, half), half);
#pragma unroll
            for (int e = 0; e < 8; e++) y[e] = own.there(half) ? part_of(d, run, half, e) : 0.f;
            const Quad kept = pack(y);
            if (own.there(half)) *(Quad*)(d_qkv + qkv_at(part, feature, half)) = kept;
            unpack(y, kept);
#pragma unroll
            for (int e = 0; e < 8; e++) {
              sum_weight[e] += y[e] * x[e], sum_shift[e] += y[e];
              mean[half] += y[e] * weight[e], along[half] += y[e] * weight[e] * x[e];
            }
          }
          add_columns(sums_of + QKV_WEIGHT + i, sum_weight), add_columns(sums_of + QKV_SHIFT + i, sum_shift);
        }
      };
      float d_query[TILES][4], inners[SLICE / V][2];
#pragma unroll
      for (int head = 0; head < SLICE / V; head++) {
        const Head place{own.row, slice * (SLICE / V) + head, own.valid, inputs + ((long)t * batch + first) * Q, vectors};
        const int begins = head * (V / 8);  // tile
        Fragment queries[SUMS], input_keys[SUMS], input_values[SUMS];
        float totals_of[2];
#pragma unroll
        for (int sum = 0; sum < SUMS; sum++) WordRows{words[0] + begins}.as_left(queries[sum], sum);
        place.inputs_of(input_keys, 1), place.inputs_of(input_values, 2);
        place.totals_of_rows(totals_of, kept_total + (t * all + own.base) * HEADS);
        queries_backward(
            WordRows{reads + begins}, WordRows{words[1] + begins}, WordRows{words[2] + begins}, place, queries, input_keys,
            input_values, totals_of, (float)logit_scale, [&](int half, float x) { inners[head][half] = x; },
            [&](int half, int sum, int tile, float x, float y) {
              d_query[begins + 2 * sum + tile][2 * half] = x, d_query[begins + 2 * sum + tile][2 * half + 1] = y;
            },
            [] {});
      }
      take(0, d_query);
      float d_key[TILES][4], d_value[TILES][4];
#pragma unroll
      for (int head = 0; head < SLICE / V; head++) {
        const Head place{own.row, slice * (SLICE / V) + head, own.valid, inputs + ((long)t * batch + first) * Q, vectors};
        const int begins = head * (V / 8);
        const auto inner_of = [&](int tile, int i) { return float_from_lane(inners[head][tile], (lane % 4 * 2 + i) * 4); };
        Fragment keys[SUMS], values[SUMS];
        float totals_of[2][2];
        place.totals_of_columns(totals_of, kept_total + (t * all + own.base) * HEADS);
        place.inputs_of(keys, 1), place.inputs_of(values, 2);
        keys_backward<true>(
            WordRows{reads + begins}, WordRows{words[0] + begins}, place, keys, values, totals_of, inner_of,
            [&](int half, int part, int sum, int tile, float x, float y) {
              bf16* const to = d_inputs + ((long)t * batch + first) * Q + place.input_at(half, part, sum, tile);
              *(unsigned*)to = round2(x, y);
              if (part == 1) *(unsigned*)(to - V) = 0u;  // nobody reads what the input would have attended to
            },
            [] {});
#pragma unroll
        for (int sum = 0; sum < SUMS; sum++)
          WordRows{words[1] + begins}.as_left(keys[sum], sum), WordRows{words[2] + begins}.as_left(values[sum], sum);
        keys_backward<false>(
            WordRows{reads + begins}, WordRows{words[0] + begins}, place, keys, values, totals_of, inner_of,
            [&](int half, int part, int sum, int tile, float x, float y) {
              auto& to = (part == 1 ? d_key : d_value)[begins + 2 * sum + tile];
              to[2 * half] = x, to[2 * half + 1] = y;
            },
            [] {});
      }
      take(1, d_key), take(2, d_value);
    }

    // products back to the memory: first through the gates, where tanh of the memory is, then through q, k, v
    Sums d;
    if (GATES == 2) {
      const auto gate = [&](int g) {
        Words words;
        each_run([&](int run, int half) {
          Run x;
          load_bf16(x, d_gates + (t * all + own.all_of(half)) * 2 * F + g * F + own.feature(run), half);
          round_run(x, words, run, half);
        });
        own.replace(words);
      };
      gate(0), multiply(d, ring, operands);
      gate(1), multiply<true>(d, ring, operands);
    }
    each_run([&](int run, int half) {
      Run direct = {}, hidden;
      if (own.there(half)) load_run(direct, carry + own.at(run, half));
      if (GATES == 2) load_bf16(hidden, kept_hidden + step + own.at(run, half), half);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        float& to = part_of(d, run, half, e);
        to = direct[e] + (GATES == 2 ? to * (1.f - hidden[e] * hidden[e]) : 0.f);
      }
    });
    if (HALVES == 1)
#pragma unroll
      for (int i = 0; i < 4 * RUNS; i++) d[i][2] = d[i][3] = 0.f;
    float scale[2];
#pragma unroll
    for (int half = 0; half < HALVES; half++)
      mean[half] = quad_sum(mean[half]) / Q, along[half] = quad_sum(along[half]) / Q, scale[half] = scales(half, 0);
#pragma unroll 1
    for (int part = 0; part < 3; part++) {
      Words words;
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        const int feature = own.feature(run), i = feature / V * 3 * V + part * V + feature % V;
        Run weight, bias = {};
        load_run(weight, vectors + QKV_WEIGHT + i);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          Run x, y;
          load_bf16(x, kept_qkv + qkv_at(part, feature, half), half), load_bf16(y, d_qkv + qkv_at(part, feature, half), half);
#pragma unroll
          for (int e = 0; e < 8; e++) y[e] = (y[e] * weight[e] - mean[half] - x[e] * along[half]) * scale[half];
          round_run(y, words, run, half);
          if (own.there(half)) *(Quad*)(d_qkv + qkv_at(part, feature, half)) = quad_of(words, run, half);
#pragma unroll
          for (int e = 0; e < 8; e++) bias[e] += y[e];
        }
        add_columns(sums_of + QKV_BIAS + i, bias);
      }
      own.replace(words);
      multiply<true>(d, ring, operands);
    }
    each_run([&](int run, int half) {
      Run x;
#pragma unroll
      for (int e = 0; e < 8; e++) x[e] = part_of(d, run, half, e);
      if (own.there(half)) store_run(carry + own.at(run, half), x);
    });
  }
}
