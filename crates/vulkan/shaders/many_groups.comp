#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
layout(std430, binding = 0) readonly buffer A1 { uint x1[]; };
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 1) readonly buffer B4 { uvec4 w4[]; };
#include "out.glsl"
#include "tiles.glsl"
layout(std430, binding = 7) readonly buffer Lv { uint levels[]; };  // 16 bytes
#include "groups.glsl"
#include "levels.glsl"
#include "quads.glsl"
// of a step's groups, or of listed quads: [16][64 columns], and minima
shared vec4 scales[2 * 16 * 16];
vec4 scales_at(uint i) { return scales[i]; }
void put_scale(uint i, uint column, float scale) { scales[i][column] = scale; }
#include "group_outliers.glsl"
void main() {
  uint t = gl_LocalInvocationIndex, tc = t % 16u, tr = t / 16u, quads = group_ / 4u;
  make_table();
  begin();
  float all[32];
  int sum[32], ones[8];
  for (uint i = 0u; i < 32u; i++) { all[i] = 0.0; sum[i] = 0; ones[i % 8u] = 0; }
  for (uint s = 0u; s < steps; s++) {
    uvec4 digits[2], first, second;
    uint base = (pair_of(tc) * steps + s) * step_words;
    load(s, digits);
    if (tr < 8u) quads_at(base, 2u * tr, strip_of(tc), tc % 4u, first, second);
    barrier();
    share(digits);
    if (tr < 8u) { put_columns(2u * tr * 17u + tc, first); put_columns((2u * tr + 1u) * 17u + tc, second); }
    else if (tr - 8u < 64u / group_) share_scales(tr - 8u, base, tr - 8u, tc);
    barrier();
    for (uint q = 0u; q < 16u; q++) {
      uvec4 x0 = rows_at(q * 33u + tr * 2u), x8 = rows_at(q * 33u + tr * 2u + 1u), own = columns_at(q * 17u + tc);
      for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
        sum[i * 4u + j] += dot4(int(x0[i]), int(own[j]), 0);
        sum[16u + i * 4u + j] += dot4(int(x8[i]), int(own[j]), 0);
      }
      if (mins == 1u) for (uint i = 0u; i < 4u; i++) {
        ones[i] += dot4(int(x0[i]), ONES, 0);
        ones[4u + i] += dot4(int(x8[i]), ONES, 0);
      }
      if (q % quads != quads - 1u) continue;
      vec4 scale = scales_at(q / quads * 16u + tc), least = scales_at(256u + q / quads * 16u + tc);
      for (uint i = 0u; i < 32u; i++) { all[i] = fused(float(sum[i]), scale[i % 4u], all[i]); sum[i] = 0; }
      if (mins == 1u) for (uint i = 0u; i < 32u; i++) all[i] = fused(float(ones[i / 4u]), least[i % 4u], all[i]);
      for (uint i = 0u; i < 8u; i++) ones[i] = 0;
    }
  }
  finish(all);
}
