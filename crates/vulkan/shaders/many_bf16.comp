#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// 128 rows with 64 columns, 8 x 4 a lane; rows and weights pass through shared memory, 32 inputs at a time. tiles: even
// and odd products of those from zero, then both are added; pairs: one chain, the odd one of a pair first.
layout(constant_id = 1) const bool TILES = true;
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
layout(std430, binding = 1) readonly buffer B { uvec4 w[]; };
#include "out.glsl"
shared vec4 xs[32 * 33];   // [input][128 rows], and a pad
shared vec4 ws[32 * 17];   // [input][64 columns]
float result(uint r, uint k, uint row, uint column) { return xs[r * 16u + k / 4u][k % 4u]; }
void main() {
  uint t = gl_LocalInvocationIndex, tc = t % 16u, tr = t / 16u, row0 = group().x * 128u;
  uint pair = min(group().y * 2u + tc / 8u, pairs - 1u), strip = tc / 4u % 2u;
  float total[32];
  for (uint i = 0u; i < 32u; i++) total[i] = 0.0;
  for (uint s = 0u; s < steps; s++) {
    uvec4 numbers[2];
    for (uint i = 0u; i < 2u; i++) {
      uint id = t + i * 256u, row = row0 + id / 4u;
      numbers[i] = row < rows ? x[(row * steps + s) * 4u + id % 4u] : uvec4(0u);
    }
    uvec4 words = w[((pair * steps + s) * 512u + strip * 256u + tr * 16u) / 4u + tc % 4u];
    barrier();
    for (uint i = 0u; i < 2u; i++) {
      uint id = t + i * 256u, row = id / 4u, k = id % 4u * 8u;
      for (uint c = 0u; c < 4u; c++) {
        xs[(k + 2u * c) * 33u + row / 4u][row % 4u] = low(numbers[i][c]);
        xs[(k + 2u * c + 1u) * 33u + row / 4u][row % 4u] = high(numbers[i][c]);
      }
    }
    ws[2u * tr * 17u + tc] = vec4(low(words.x), low(words.y), low(words.z), low(words.w));
    ws[(2u * tr + 1u) * 17u + tc] = vec4(high(words.x), high(words.y), high(words.z), high(words.w));
    barrier();
    float even[32], odd[32];
    for (uint i = 0u; i < 32u; i++) { even[i] = 0.0; odd[i] = TILES ? 0.0 : total[i]; }
    for (uint p = 0u; p < 16u; p++) {
      uint k = 2u * p + 1u;
      vec4 x0 = xs[k * 33u + tr * 2u], x1 = xs[k * 33u + tr * 2u + 1u], b_ = ws[k * 17u + tc];
      for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
        odd[i * 4u + j] = plus_exact(x0[i], b_[j], odd[i * 4u + j]);
        odd[16u + i * 4u + j] = plus_exact(x1[i], b_[j], odd[16u + i * 4u + j]);
      }
      k -= 1u;
      x0 = xs[k * 33u + tr * 2u]; x1 = xs[k * 33u + tr * 2u + 1u]; b_ = ws[k * 17u + tc];
      for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
        uint a0 = i * 4u + j, a1 = 16u + a0;
        if (TILES) { even[a0] = plus_exact(x0[i], b_[j], even[a0]); even[a1] = plus_exact(x1[i], b_[j], even[a1]); }
        else { odd[a0] = plus_exact(x0[i], b_[j], odd[a0]); odd[a1] = plus_exact(x1[i], b_[j], odd[a1]); }
      }
    }
    for (uint i = 0u; i < 32u; i++) total[i] = TILES ? add(total[i], add(even[i], odd[i])) : odd[i];
  }
  // every eighth row together
  for (uint i = 0u; i < 8u; i++) {
    vec4 own;
    for (uint j = 0u; j < 32u; j += 4u)
      if (j == i * 4u) own = vec4(total[j], total[j + 1u], total[j + 2u], total[j + 3u]);
    barrier();
    xs[t] = own;
    barrier();
    uint row = row0 + i, count = row < rows ? min(16u, (rows - row + 7u) / 8u) : 0u;
    for (uint k = t; k < to_put(count, 64u); k += 256u) put(k, row, 8u, (first_pair + group().y * 2u) * 32u, 64u);
  }
}
