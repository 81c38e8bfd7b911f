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
float result(uint r, uint k, uint row, uint column) {
  return mul(uintBitsToFloat(xs[r * 16u + k / 4u][k % 4u]), row_scale[row]);
}
// of four columns
void share_scales(uint to, uint base, uint g, uint fours) {
  for (uint j = 0u; j < 4u + 4u * mins; j++) {
    float scale = scale_at(base + j / 4u * scale_words(), g, fours % 8u * 4u + j % 4u);
    scales[j / 4u * 256u + to * 16u + fours][j % 4u] = scale;
  }
}
void main() {
  uint t = gl_LocalInvocationIndex, tc = t % 16u, tr = t / 16u, quads = group_ / 4u;
  make_table();
  begin();
  float all[32], total[32];
  int sum[32], ones[8];
  for (uint i = 0u; i < 32u; i++) { all[i] = 0.0; sum[i] = 0; ones[i % 8u] = 0; }
  for (uint s = 0u; s < steps; s++) {
    uvec4 digits[2], first, second;
    uint base = (pair_of(tc) * steps + s) * step_words;
    load(s, digits);
    if (tr < 8u) quads_at(base, 2u * tr, strip_of(tc), tc % 4u, first, second);
    barrier();
    share(digits);
    if (tr < 8u) { ws[2u * tr * 17u + tc] = first; ws[(2u * tr + 1u) * 17u + tc] = second; }
    else if (tr - 8u < 64u / group_) share_scales(tr - 8u, base, tr - 8u, tc);
    barrier();
    for (uint q = 0u; q < 16u; q++) {
      uvec4 x0 = xs[q * 33u + tr * 2u], x8 = xs[q * 33u + tr * 2u + 1u], own = ws[q * 17u + tc];
      for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
        sum[i * 4u + j] += dot4(int(x0[i]), int(own[j]), 0);
        sum[16u + i * 4u + j] += dot4(int(x8[i]), int(own[j]), 0);
      }
      if (mins == 1u) for (uint i = 0u; i < 4u; i++) {
        ones[i] += dot4(int(x0[i]), ONES, 0);
        ones[4u + i] += dot4(int(x8[i]), ONES, 0);
      }
      if (q % quads != quads - 1u) continue;
      vec4 scale = scales[q / quads * 16u + tc], least = scales[256u + q / quads * 16u + tc];
      for (uint i = 0u; i < 32u; i++) { all[i] = fused(float(sum[i]), scale[i % 4u], all[i]); sum[i] = 0; }
      if (mins == 1u) for (uint i = 0u; i < 32u; i++) all[i] = fused(float(ones[i / 4u]), least[i % 4u], all[i]);
      for (uint i = 0u; i < 8u; i++) ones[i] = 0;
    }
  }
  if (planes > 1u) {
    uint others = listed_quads();
    for (uint plane = 1u; plane < 3u; plane++) {
      for (uint i = 0u; i < 32u; i++) total[i] = 0.0;
      for (uint from = 0u; from < others; from += 16u) {
        uint quad = listed_quad(min(from + tr, others - 1u)), base = (pair_of(tc) * steps + quad / 16u) * step_words;
        uvec4 first, second;
        quads_at(base, quad % 16u / 2u * 2u, strip_of(tc), tc % 4u, first, second);
        barrier();
        share_others(plane, from, others);
        ws[tr * 17u + tc] = quad % 2u == 0u ? first : second;
        share_scales(tr, base, quad % 16u / quads, tc);
        barrier();
        for (uint q = 0u; q < min(16u, others - from); q++) {
          uvec4 own = ws[q * 17u + tc];
          vec4 scale = scales[q * 16u + tc], least = scales[256u + q * 16u + tc];
          for (uint i = 0u; i < 8u; i++) {
            int digits = int(xs[q * 33u + tr * 2u + i / 4u][i % 4u]);
            if (digits == 0) continue;
            for (uint j = 0u; j < 4u; j++)
              total[i * 4u + j] = fused(float(dot4(digits, int(own[j]), 0)), scale[j], total[i * 4u + j]);
            float one = float(dot4(digits, ONES, 0));
            if (mins == 1u) for (uint j = 0u; j < 4u; j++) total[i * 4u + j] = fused(one, least[j], total[i * 4u + j]);
          }
        }
      }
      for (uint i = 0u; i < 32u; i++) all[i] = fused(plane == 1u ? 255.0 : 65025.0, total[i], all[i]);
    }
  }
  put_all(all);
}
