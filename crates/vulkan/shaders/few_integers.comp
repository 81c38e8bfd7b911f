#version 450
#extension GL_GOOGLE_include_directive : require
#include "routed.glsl"
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
// Four rows with a strip, or with two where they are gated. 32 lanes take 32 quads of inputs, or 64 of four bits: eight
// by four, each four quads, or eight, of four columns, which is four loads of 16 bytes. Sums are exact, so lanes are
// joined in any order. Outliers are rare: their digits go to the sums at once.
layout(constant_id = 3) const uint LANES = 256;
layout(local_size_x_id = 3) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
#ifdef ROUTED
#define w Fours(own_tile.at.weights).at
#define w1 Words(own_tile.at.weights).at
#else
layout(std430, binding = 1) readonly buffer B { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer B1 { uint w1[]; };
#endif
#include "out.glsl"
layout(std430, binding = 4) readonly buffer Rs { float row_scale[]; };
layout(std430, binding = 5) readonly buffer U { uint used[]; };
#include "integers.glsl"
const uint ROWS = 4u, QUADS = FOUR ? 8u : 4u;
shared int part[LANES * 4u];
shared int sums[3u * ROWS * 32u];  // [plane][row][column]
float result(uint r, uint k, uint row, uint column) {
  float middle = fused(255.0, float(sums[(ROWS + r) * 32u + k]), float(sums[r * 32u + k]));
  float all = fused(65025.0, float(sums[(2u * ROWS + r) * 32u + k]), middle);
  return mul(mul(all, row_scale[row]), column_scale[column]);
}
void main() {
  uint t = gl_LocalInvocationIndex, unit = t / 32u, c4 = t % 4u, strips = mode == GATED ? 2u : 1u;
  TILE(row, count, ROWS);
  uint pair = group().y * strips / 2u, strip = (strips == 2u ? unit : group().y) % 2u;
  uint at = strips == 2u ? strip * 16u : 0u, quads = steps * 16u;
  uint column = (first_pair + pair) * 32u + (strips == 2u ? 0u : strip * 16u);
  if (column >= n) return;
  for (uint i = t; i < 3u * ROWS * 32u; i += LANES) sums[i] = 0;
  make_table();
  barrier();
  uint more = 0u;
  for (uint r = 0u; r < count; r++) more |= uint(used[row + r] > 1u) << r;
  int total[ROWS * 4u];
  for (uint i = 0u; i < ROWS * 4u; i++) total[i] = 0;
  for (uint quad = (unit / strips * 8u + t % 32u / 4u) * QUADS; quad < quads; quad += LANES / 4u / strips * QUADS) {
    uint from = weights_at(pair, strip, c4, quad) / 4u, ratios = w1[ratios_at(pair, strip, c4, quad)];
    uvec4 words[4];
    for (uint i = 0u; i < 4u; i++) words[i] = w[from + 4u * i];
    uvec4 q[QUADS];
    for (uint i = 0u; i < 4u; i++) {
      if (FOUR) for (uint j = 0u; j < 4u; j++) unpack(words[i][j], q[(2u * i) % QUADS][j], q[(2u * i + 1u) % QUADS][j]);
      else q[i] = words[i];
    }
    for (uint r = 0u; r < ROWS; r++) if (r < count) {
      uint own = ((row + r) * quads + quad) / 4u;
      int sum[4] = int[4](0, 0, 0, 0);
      for (uint k = 0u; k < QUADS / 4u; k++) {
        uvec4 digits = x[own + k];
        for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++)
          sum[j] += dot4(int(digits[i]), int(q[k * 4u + i][j]), 0);
      }
      for (uint j = 0u; j < 4u; j++) total[r * 4u + j] += byte_(ratios, j) * sum[j];
    }
    for (uint r = 0u; r < count; r++) if ((more >> r & 1u) == 1u) for (uint k = 0u; k < QUADS / 4u; k++) {
      uvec4 middle = x[((rows + row + r) * quads + quad) / 4u + k];
      uvec4 high_ = x[((2u * rows + row + r) * quads + quad) / 4u + k];
      if (any(notEqual(middle | high_, uvec4(0u)))) for (uint i = 0u; i < 4u; i++) if ((middle[i] | high_[i]) != 0u) {
        uint other = quad + k * 4u + i;
        uvec4 weights = levels_at(w[weights_at(pair, strip, c4, other) / 4u], other);
        for (uint j = 0u; j < 4u; j++) {
          uint to = r * 32u + at + c4 * 4u + j;
          atomicAdd(sums[ROWS * 32u + to], byte_(ratios, j) * dot4(int(middle[i]), int(weights[j]), 0));
          atomicAdd(sums[2u * ROWS * 32u + to], byte_(ratios, j) * dot4(int(high_[i]), int(weights[j]), 0));
        }
      }
    }
  }
  // part: [LANES / 4][16 columns]; a lane adds every (LANES / 16)th of a column, all of one strip
  for (uint r = 0u; r < ROWS; r++) if (r < count) {
    for (uint j = 0u; j < 4u; j++) part[t * 4u + j] = total[r * 4u + j];
    barrier();
    int sum = 0;
    for (uint i = t; i < LANES * 4u; i += LANES) sum += part[i];
    atomicAdd(sums[r * 32u + (strips == 2u ? t / 128u % 2u * 16u : 0u) + t % 16u], sum);
    barrier();
  }
  for (uint i = t; i < to_put(count, strips * 16u); i += LANES) put(i, row, 1u, column, strips * 16u);
}
