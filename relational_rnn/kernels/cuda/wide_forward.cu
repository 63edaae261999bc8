// A whole sequence, forward, by groups (wide.cuh); what it reads and writes is what sequence_forward does.

// Products in the order: squares (below), queries, keys and values of 64 features at a time, MLP, gates of 128 features at a time.

extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_forward(
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
    int gate_width, int gate_stride, double logit_scale,
    const float* __restrict__ squares_of) {  // [2 F + 1], below
  const int lane = threadIdx.x % 32, group = warp_number() / 4;
  const int first = blockIdx.x * share;  // sample
  const long all = (long)batch * N;      // rows of a step
  Ring ring = make_ring(all_vectors, squares_of);
  if (group == GROUPS) {
    give_registers();
    if (threadIdx.x % 128 == 0)
#pragma unroll 1
      for (int t = 0; t < steps; t++) {
        const char* from = (const char*)packed;
        ask_product<32>(ring, from);
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++) ask_product<24>(ring, from);
#pragma unroll 1
        for (int i = 0; i < LAYERS + (GATES == 2 ? 2 : 0); i++) ask_product<32>(ring, from);
      }
    return;
  }
  take_registers();
  const Own own = own_of(first, min(share, batch - first));
  const unsigned operands = shared_address(own.tile);
  const float* const vectors = shared_vectors();
  const float* const of_squares = vectors + COLUMNS;
  // The memory a step begins with: x, unless an episode begins; kept, and rounded as it is multiplied.
  const auto begin = [&](Run& x, int t, Words& words, int place, int run, int half) {  // place: of the run in `words`
    if (own.there(half)) {
      const int row = own.row_of(half);
      if (RESETS && resets[(long)t * batch + first + row / N])
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = own.feature(run) + e == row % N ? 1.f : 0.f;
      if (RESETS) store_run(starts + t * all * F + own.at(run, half), x);
    }
    round_run(x, words, place, half);
    if (KEEP && own.there(half)) keep_quad(kept_rows + t * all * F + own.at(run, half), quad_of(words, place, half));
  };

  {
    Words words;
    each_run([&](int run, int half) {
      Run x = {};
      if (own.there(half)) load_run(x, memory + own.at(run, half));
      begin(x, 0, words, run, run, half);
    });
    own.replace(words);
  }

#pragma unroll 1
  for (int t = 0; t < steps; t++) {
    const float* const before = RESETS ? starts + t * all * F : t == 0 ? memory : memories + (t - 1) * all * F;
    const long step = t * all * F;

    // The norm of queries, keys and values needs the sum of their squares before the first of them is used, |W m + b|^2. That
    // is m (W'W - D) m + D m^2 + 2 b'W m + b'b, with D the diagonal of W'W, kept apart since it is most of it.
    float scale[2] = {0.f, 0.f};
    Sums squared;  // sums are never declared before they are made: stale ones would keep their registers
    multiply(squared, ring, operands);
    each_run([&](int run, int half) {
      Run linear, diagonal;
      load_run(linear, of_squares + own.feature(run)), load_run(diagonal, of_squares + F + own.feature(run));
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const unsigned both = *word_at(own.tile, 4 * run + j, half);
        const float x = low(both), y = high(both);
        scale[half] += x * (squared[4 * run + j][2 * half] + linear[2 * j] + diagonal[2 * j] * x);
        scale[half] += y * (squared[4 * run + j][2 * half + 1] + linear[2 * j + 1] + diagonal[2 * j + 1] * y);
      }
    });
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      const float squares = fmaxf(quad_sum(scale[half]) + of_squares[2 * F], 0.f);
      scale[half] = reciprocal_root(squares / Q + EPSILON);
      if (KEEP && own.there(half) && lane % 4 == 0) kept_scales[(t * all + own.all_of(half)) * 3] = scale[half];
    }

    // attention, SLICE features at a time: what was read, as float16, comes in at the end of `read`,
    // and the rest moves on: a register has no number that could be computed
    Words read = {};
#pragma unroll 1
    for (int slice = 0; slice < SLICES; slice++) {
      constexpr int TILES = SLICE / 8;  // of each of queries, keys and values
      unsigned words[3][TILES][2] = {};
      {
        float made[3 * TILES][4];
        multiply(made, ring, operands);
#pragma unroll
        for (int part = 0; part < 3; part++)
#pragma unroll
          for (int run = 0; run < TILES / 4; run++) {
            const int feature = slice * SLICE + own.feature(run), i = feature / V * 3 * V + part * V + feature % V;
            Run bias, weight, shift;
            load_run(bias, vectors + QKV_BIAS + i), load_run(weight, vectors + QKV_WEIGHT + i);
            if (part == 0) load_run(shift, vectors + QKV_SHIFT + i);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
              Run x;
#pragma unroll
              for (int e = 0; e < 8; e++)
                x[e] = (made[part * TILES + 4 * run + e / 2][2 * half + e % 2] + bias[e]) * scale[half];
              const Quad normed = pack(x);
              if (KEEP && own.there(half)) *(Quad*)(kept_qkv + (t * all + own.all_of(half)) * Q + i) = normed;
              unpack(x, normed);
#pragma unroll
              for (int e = 0; e < 8; e++) {
                x[e] *= weight[e];
                if (part == 0) x[e] = (x[e] + shift[e]) * (float)logit_scale;
              }
#pragma unroll
              for (int j = 0; j < 4; j++) words[part][4 * run + j][half] = round2(x[2 * j], x[2 * j + 1]);
            }
          }
      }
#pragma unroll
      for (int i = 0; i < 4 * RUNS - TILES; i++) read[i][0] = read[i + TILES][0], read[i][1] = read[i + TILES][1];
#pragma unroll
      for (int head = 0; head < SLICE / V; head++) {
        const Head place{own.row, slice * (SLICE / V) + head, own.valid, inputs + ((long)t * batch + first) * Q, vectors};
        const int begins = head * (V / 8);  // tile
        Fragment input_keys[SUMS], input_values[SUMS];
        place.inputs_of(input_keys, 1), place.inputs_of(input_values, 2);
        attend(
            WordRows{words[0] + begins}, WordRows{words[1] + begins}, WordRows{words[2] + begins}, place, input_keys,
            input_values, KEEP ? kept_total + (t * all + own.base) * HEADS : nullptr,
            [&](int half, int sum, int j, float x, float y) {
              read[4 * RUNS - TILES + begins + 2 * sum + j][half] = halves(x, y);
            });
      }
    }

    // residual and norm
    const auto keep_normed = [&](bf16* to, const Sums& x, int which) {
      if (!KEEP) return;
      each_run([&](int run, int half) {
        Run kept;
#pragma unroll
        for (int e = 0; e < 8; e++) kept[e] = part_of(x, run, half, e);
        if (own.there(half)) *(Quad*)(to + step + own.at(run, half)) = pack(kept);
      });
#pragma unroll
      for (int half = 0; half < HALVES; half++)
        if (own.there(half) && lane % 4 == 0) kept_scales[(t * all + own.all_of(half)) * 3 + which] = scale[half];
    };
    Words attended;
    Sums summed;
    each_run([&](int run, int half) {
      Run m = {};
      if (own.there(half)) load_run(m, before + own.at(run, half));
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 x = from_halves(read[4 * run + j][half]);
        summed[4 * run + j][2 * half] = m[2 * j] + x.x, summed[4 * run + j][2 * half + 1] = m[2 * j + 1] + x.y;
      }
    });
    normalize(summed, scale);
    keep_normed(kept_normed, summed, 1);
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      Run weight, shift;
      load_run(weight, vectors + READ_WEIGHT + own.feature(run)), load_run(shift, vectors + READ_SHIFT + own.feature(run));
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        Run x;
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = part_of(summed, run, half, e) * weight[e] + shift[e];
        round_run(x, attended, run, half);
        if (KEEP && own.there(half)) *(Quad*)(kept_attended + step + own.at(run, half)) = quad_of(attended, run, half);
      }
    }
    own.replace(attended);

    // the MLP, but for its last bias
#pragma unroll 1
    for (int layer = 0; layer < LAYERS - 1; layer++) {
      Sums sums;
      multiply(sums, ring, operands);
      Words hidden;
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        Run bias;
        load_run(bias, vectors + MLP_BIAS + layer * F + own.feature(run));
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          Run x;
#pragma unroll
          for (int e = 0; e < 8; e++) x[e] = fmaxf(part_of(sums, run, half, e) + bias[e], 0.f);
          round_run(x, hidden, run, half);
          if (KEEP && own.there(half))
            *(Quad*)(kept_mlp + ((long)layer * steps + t) * all * F + own.at(run, half)) = quad_of(hidden, run, half);
        }
      }
      own.replace(hidden);
    }

    // its residual and norm
    Words after;  // the candidates, as float16; then, as bf16, what the next step begins with
    Sums out;
    multiply(out, ring, operands);
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      Run bias;
      load_run(bias, vectors + MLP_BIAS + (LAYERS - 1) * F + own.feature(run));
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 2 * HALVES; i++) {
          const unsigned both = attended[4 * run + j][i / 2];
          out[4 * run + j][i] += (i % 2 ? high(both) : low(both)) + bias[2 * j + i % 2];
        }
    }
    normalize(out, scale);
    keep_normed(kept_mlp + (long)(LAYERS - 1) * steps * all * F, out, 2);
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      Run weight, shift;
      load_run(weight, vectors + MLP_WEIGHT + own.feature(run)), load_run(shift, vectors + MLP_SHIFT + own.feature(run));
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        Run x;
#pragma unroll
        for (int e = 0; e < 8; e++) {
          x[e] = part_of(out, run, half, e) * weight[e] + shift[e];
          if (GATES > 0) x[e] = tangent(x[e]);
        }
        if (GATES == 0) {
          if (own.there(half)) store_run(memories + step + own.at(run, half), x);
          if (t + 1 < steps) begin(x, t + 1, after, run, run, half);
        } else {
#pragma unroll
          for (int j = 0; j < 4; j++) after[4 * run + j][half] = halves(x[2 * j], x[2 * j + 1]);
        }
      }
    }
    // tanh of the memory, and two gates a slot
    float gates[2][2] = {};  // gate, half
    if (GATES > 0) {
      Words hidden;
      each_run([&](int run, int half) {
        Run m = {};
        if (own.there(half)) load_run(m, before + own.at(run, half));
#pragma unroll
        for (int e = 0; e < 8; e++) m[e] = tangent(m[e]);
        round_run(m, hidden, run, half);
        const Quad rounded_run = quad_of(hidden, run, half);
        if (KEEP && own.there(half)) *(Quad*)(kept_hidden + step + own.at(run, half)) = rounded_run;
        if (GATES == 1) {
          unpack(m, rounded_run);
#pragma unroll
          for (int g = 0; g < 2; g++) {
            Run w;
            unpack(w, *(const Quad*)(gate_weight + g * F + own.feature(run)));
#pragma unroll
            for (int e = 0; e < 8; e++) gates[g][half] += m[e] * w[e];
          }
        }
      });
      if (GATES == 2) own.replace(hidden);
    }
    if (GATES == 1) {
#pragma unroll
      for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int g = 0; g < 2; g++) {
          gates[g][half] = rounded(quad_sum(gates[g][half]));
          if (!own.there(half)) continue;
          if (KEEP && lane % 4 == 0)
            kept_gates[(t * all + own.all_of(half)) * gate_stride + g] = round2(gates[g][half], 0.f);
          gates[g][half] =
              sigmoid(gates[g][half] + low(gates_in[((long)t * batch + first + own.row_of(half) / N) * gate_width + g]));
        }
      each_run([&](int run, int half) {
        Run x = {};
        if (own.there(half)) {
          load_run(x, before + own.at(run, half));
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const float2 new_ones = from_halves(after[4 * run + j][half]);
            x[2 * j] = gates[0][half] * new_ones.x + gates[1][half] * x[2 * j];
            x[2 * j + 1] = gates[0][half] * new_ones.y + gates[1][half] * x[2 * j + 1];
          }
          store_run(memories + step + own.at(run, half), x);
        }
        if (t + 1 < steps) begin(x, t + 1, after, run, run, half);
      });
    }
    if (GATES == 2) {  // of each product's eight runs four are the first gate's, each followed by the second's
#pragma unroll 1
      for (int part = 0; part < 2; part++) {
        Sums sums;
        multiply(sums, ring, operands);
#pragma unroll
        for (int run = 0; run < RUNS / 2; run++)
#pragma unroll
          for (int half = 0; half < HALVES; half++) {
            const int feature = part * (F / 2) + own.feature(run);
            Run x = {};
            if (own.there(half)) {
              const long r = own.all_of(half);
              if (KEEP) {
                bf16* const to = kept_gates + (t * all + r) * (2 * F) + feature;
#pragma unroll
                for (int g = 0; g < 2; g++) {
                  Run kept;
#pragma unroll
                  for (int e = 0; e < 8; e++) kept[e] = sums[8 * run + 4 * g + e / 2][2 * half + e % 2];
                  *(Quad*)(to + g * F) = pack(kept);
                }
              }
              const bf16* const from = gates_in + ((long)t * batch + first + own.row_of(half) / N) * gate_width + feature;
              Run accept, retain;
              unpack(accept, *(const Quad*)from), unpack(retain, *(const Quad*)(from + F));
              load_run(x, before + r * F + feature);
#pragma unroll
              for (int j = 0; j < 4; j++) {
                const float2 new_ones = from_halves(after[4 * run + j][half]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                  const int e = 2 * j + i;
                  x[e] = sigmoid(sums[8 * run + j][2 * half + i] + accept[e]) * (i ? new_ones.y : new_ones.x) +
                         sigmoid(sums[8 * run + 4 + j][2 * half + i] + retain[e]) * x[e];
                }
              }
              store_run(memories + step + r * F + feature, x);
            }
            if (t + 1 < steps) begin(x, t + 1, after, run, part * (RUNS / 2) + run, half);
          }
#pragma unroll
        for (int i = 0; i < 2 * RUNS; i++)  // the other half's turn
#pragma unroll
          for (int half = 0; half < HALVES; half++) {
            const unsigned word = after[i][half];
            after[i][half] = after[i + 2 * RUNS][half], after[i + 2 * RUNS][half] = word;
          }
      }
    }
    if (t + 1 < steps) own.replace(after);
  }
}
