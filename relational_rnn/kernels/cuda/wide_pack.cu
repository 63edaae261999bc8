// Weights in the order in which the kernels of groups want them, as bf16: product after product; for each 16 of a sum's features
// two halves of 8, for each half all columns, 16 bytes each. Columns and features are numbered as wide.cuh says. A thread to 16
// bytes.

// the feature of a column, or of a position in a sum
__device__ __forceinline__ int feature_of(int position) {
  const int tile = position / 8, in_tile = position % 8;
  return tile / 4 * 32 + in_tile / 2 * 8 + tile % 4 * 2 + in_tile % 2;
}
// the row of a query's, key's or value's feature among all three
__device__ __forceinline__ int row_of(int part, int feature) { return feature / V * 3 * V + part * V + feature % V; }

extern "C" __global__ void wide_pack(const SOURCE* __restrict__ qkv,  // [Q, F]
                                     const SOURCE* __restrict__ mlp0, const SOURCE* __restrict__ mlp1,
                                     const SOURCE* __restrict__ mlp2, const SOURCE* __restrict__ mlp3,
                                     const SOURCE* __restrict__ mlp4,     // [F, F]
                                     const SOURCE* __restrict__ gate,     // [2 F, F]
                                     const float* __restrict__ means,     // [F]
                                     const float* __restrict__ products,  // [F + 8, F + 8], as wide.products says
                                     Quad* __restrict__ packed,
                                     float* __restrict__ squares_of) {  // [2 F + 1], for wide_forward
  constexpr int SLICE = 64, SQUARE = F * F / 8, SLICED = 3 * SLICE * F / 8, SIZE = (1 + PRODUCTS) * SQUARE;  // 16 bytes each
  const SOURCE* const mlp[5] = {mlp0, mlp1, mlp2, mlp3, mlp4};
  const int number = blockIdx.x * 256 + threadIdx.x;
  constexpr int WIDTH = F + 8;
  if (number < F) squares_of[number] = 2 * products[number * WIDTH + F], squares_of[F + number] = products[number * (WIDTH + 1)];
  if (number == F) squares_of[2 * F] = products[F * (WIDTH + 1)];
  if (number >= SIZE) return;
  const int i = number - SQUARE;  // behind the first product
  const bool slices = i >= 0 && i < 3 * SQUARE;
  const int product = slices ? i / SLICED : i / SQUARE;
  const int columns = slices ? 3 * SLICE : F, in_product = i < 0 ? number : slices ? i % SLICED : i % SQUARE;
  const int column = in_product % columns, eighth = in_product / columns;
  float x[8];
  for (int e = 0; e < 8; e++) {
    const int in = feature_of(eighth * 8 + e), out = feature_of(column);
    if (i < 0) {
      x[e] = in == out ? 0.f : products[out * WIDTH + in];
    } else if (slices) {  // of 64 features: q, k, v
      x[e] = real(qkv[row_of(column / SLICE, product * SLICE + feature_of(column % SLICE)) * F + in]) - means[in];
    } else if (product - 3 < LAYERS) {
      x[e] = real(mlp[product - 3][out * F + in]);
    } else {  // half of the features; four tiles of the first gate, four of the second, and so on
      const int tile = column / 8, which = tile / 4 % 2, position = (tile / 8 * 4 + tile % 4) * 8 + column % 8;
      const int feature = (product - 3 - LAYERS) * (F / 2) + feature_of(position);
      x[e] = real(gate[(which * F + feature) * F + in]);
    }
  }
  packed[number] = Quad{round2(x[0], x[1]), round2(x[2], x[3]), round2(x[4], x[5]), round2(x[6], x[7])};
}
