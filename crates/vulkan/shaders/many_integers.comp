#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
layout(std430, binding = 0) readonly buffer A1 { uint x1[]; };
layout(std430, binding = 1) readonly buffer B { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer B1 { uint w1[]; };
#include "out.glsl"
#include "tiles.glsl"
#include "integers.glsl"
shared int ratios[16 * 16];  // [listed quad][64 columns]
#include "outliers.glsl"
void main() {
  uint t = gl_LocalInvocationIndex, tc = t % 16u, tr = t / 16u;
  make_table();
  begin();
  int total[32], sum[32];
  for (uint i = 0u; i < 32u; i++) { total[i] = 0; sum[i] = 0; }
  for (uint s = 0u; s < steps; s++) {
    uvec4 digits[2], words = uvec4(0u);
    load(s, digits);
    uint line = FOUR ? tr * 2u : tr;
    if (line < 16u) words = w[weights_at(pair_of(tc), strip_of(tc), tc % 4u, s * 16u + line) / 4u];
    barrier();
    share(digits);
    if (line < 16u) {
      uvec4 lo = words, hi;
      if (FOUR) for (uint j = 0u; j < 4u; j++) unpack(words[j], lo[j], hi[j]);
      put_columns(line * 17u + tc, lo);
      if (FOUR) put_columns((line + 1u) * 17u + tc, hi);
    }
    barrier();
    for (uint q = 0u; q < 16u; q++) {
      uvec4 x0 = rows_at(q * 33u + tr * 2u), x8 = rows_at(q * 33u + tr * 2u + 1u), own = columns_at(q * 17u + tc);
      for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
        sum[i * 4u + j] += dot4(int(x0[i]), int(own[j]), 0);
        sum[16u + i * 4u + j] += dot4(int(x8[i]), int(own[j]), 0);
      }
      if (FOUR ? q % 8u == 7u : q == 15u && (s % 2u == 1u || s + 1u == steps)) {
        uint those = w1[ratios_at(pair_of(tc), strip_of(tc), tc % 4u, s * 16u + q)];
        for (uint i = 0u; i < 32u; i++) { total[i] += byte_(those, i % 4u) * sum[i]; sum[i] = 0; }
      }
    }
  }
  finish(total);
}
