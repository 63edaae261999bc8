// Weights in the order in which the sequence kernels want them, as bf16: for each product and each step of its sum, units
// of 16 columns, in each a warp's 32 lanes of 16 bytes. `means` first: queries, keys and values lose their common mean, which
// their norm would take off.

// Blocks of 256 threads: each 32 features; one more for the bias.
extern "C" __global__ void sequence_means(const SOURCE* __restrict__ qkv,  // [Q, F]
                                          float* __restrict__ means,       // [F]
                                          float* vectors) {                // its first Q are the bias, to be centred
  float* const partial = (float*)shared_memory();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32, feature = blockIdx.x * 32 + lane;
  float sum = 0.f;
  if (feature < F)
    for (int row = group; row < Q; row += 8) sum += real(qkv[row * F + feature]);
  else
    for (int row = threadIdx.x; row < Q; row += 256) sum += vectors[row];
  partial[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.f;
  if (feature < F) {
    for (int i = 0; i < 8; i++) sum += partial[i * 32 + lane];
    if (group == 0) means[feature] = sum / Q;
  } else {
    for (int i = 0; i < 256; i++) sum += partial[i];
    for (int row = threadIdx.x; row < Q; row += 256) vectors[row] -= sum / Q;
  }
}

// A thread to 16 bytes: forwards, and, if wanted, those of the way back behind them.
extern "C" __global__ void sequence_pack(const SOURCE* __restrict__ qkv,  // [Q, F]
                                         const SOURCE* __restrict__ mlp0, const SOURCE* __restrict__ mlp1,
                                         const SOURCE* __restrict__ mlp2, const SOURCE* __restrict__ mlp3,
                                         const SOURCE* __restrict__ mlp4,  // [F, F]
                                         const SOURCE* __restrict__ gate,  // [2 F, F]
                                         const float* __restrict__ means,  // [F]
                                         Quad* __restrict__ forward, Quad* __restrict__ backward) {
  constexpr int SIZE = PRODUCTS * F * F / 8;
  const SOURCE* const mlp[5] = {mlp0, mlp1, mlp2, mlp3, mlp4};
  const int number = blockIdx.x * 256 + threadIdx.x;
  const bool back = number >= SIZE;
  const int i = back ? number - SIZE : number;
  if (number >= (KEEP ? 2 : 1) * SIZE) return;
  const int lane = i % 32, unit = i / 32 % (F / 16), k = i / 2 / F % KT, product = i / (F * F / 8);
  float x[8];
  for (int e = 0; e < 8; e++) {
    const int tile = e / 4, in_tile = lane / 4;
    // of the product; where weights stay, a thread gets neighbours of both tiles
    const int column = unit * 16 + (DEPTH == 0 ? in_tile / 2 * 4 + tile * 2 + in_tile % 2 : tile * 8 + in_tile);
    const int in = k * 16 + e / 2 % 2 * 8 + lane % 4 * 2 + e % 2;               // of its sum
    if (!back && product < 3) {  // k, v, q
      const int part = product == 2 ? 0 : product + 1;
      x[e] = real(qkv[(column / V * 3 * V + part * V + column % V) * F + in]) - means[in];
    } else if (!back && product < 3 + LAYERS) {
      x[e] = real(mlp[product - 3][column * F + in]);
    } else if (!back && DEPTH == 0) {
      x[e] = real(gate[((product - 3 - LAYERS) * F + column) * F + in]);
    } else if (!back) {  // half of the features: a tile of the first gate, one of the second
      x[e] = real(gate[(tile * F + (product - 3 - LAYERS) * (F / 2) + unit * 8 + lane / 4) * F + in]);
    } else if (product < LAYERS) {  // the last first
      x[e] = real(mlp[LAYERS - 1 - product][in * F + column]);
    } else if (product < PRODUCTS - 3) {
      x[e] = real(gate[((product - LAYERS) * F + in) * F + column]);
    } else {  // q, k, v
      const int part = product - (PRODUCTS - 3);
      x[e] = real(qkv[(in / V * 3 * V + part * V + in % V) * F + column]) - means[column];
    }
  }
  (back ? backward : forward)[i] = Quad{round2(x[0], x[1]), round2(x[2], x[3]), round2(x[4], x[5]), round2(x[6], x[7])};
}
