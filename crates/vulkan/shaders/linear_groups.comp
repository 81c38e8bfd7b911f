#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
// activations in three planes of digits; groups are joined in order: of the low digits whole groups, of the others quads
layout(local_size_x = 32, local_size_y = 2) in;
layout(std430, binding = 0) readonly buffer A { uint x[]; };
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 2) buffer R { float y[]; };
layout(std430, binding = 3) readonly buffer Bi { float bias[]; };
layout(std430, binding = 4) readonly buffer Rs { float row_scale[]; };
layout(std430, binding = 5) readonly buffer U { uint used[]; };
layout(std430, binding = 6) readonly buffer Lv { uint levels[]; };  // 16 bytes
layout(push_constant) uniform P {
  uint rows, n, steps, first_pair, has_bias, add_, width, at_, step_words, scale_kind, group_, mins, four;
};
#include "out.glsl"
#include "groups.glsl"
const int ONES = 0x01010101;
void main() {
  uint lane = gl_LocalInvocationID.x, pair = group().x;
  uint row = group().y * 8u + gl_LocalInvocationID.y * 4u, planes = 1u;
  for (uint r = 0u; r < 4u; r++) if (row + r < rows) planes = max(planes, used[row + r]);
  float total[12] = float[12](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
  uint stride = steps * 16u, quads = group_ / 4u, scale_size = scale_words();
  for (uint s = 0u; s < steps; s++) {
    uint base = (pair * steps + s) * step_words, tiles = base + (mins == 1u ? 2u : 1u) * scale_size;
    for (uint group = 0u; group < 64u / group_; group++) {
      float scale = scale_at(base, group, lane), least = mins == 1u ? scale_at(base + scale_size, group, lane) : 0.0;
      int dots[4] = int[4](0, 0, 0, 0), sums[4] = int[4](0, 0, 0, 0);
      for (uint q = group * quads; q < (group + 1u) * quads; q++) {
        int weights = quad_at(tiles, q, lane);
        for (uint r = 0u; r < 4u; r++) if (row + r < rows) {
          int digits = int(x[(row + r) * stride + s * 16u + q]);
          dots[r] += dot4(digits, weights, 0);
          if (mins == 1u) sums[r] += dot4(digits, ONES, 0);
        }
        for (uint plane = 1u; plane < planes; plane++) for (uint r = 0u; r < 4u; r++) if (row + r < rows) {
          int digits = int(x[(plane * rows + row + r) * stride + s * 16u + q]);
          if (digits == 0) continue;
          uint i = plane * 4u + r;
          total[i] = fused(float(dot4(digits, weights, 0)), scale, total[i]);
          if (mins == 1u) total[i] = fused(float(dot4(digits, ONES, 0)), least, total[i]);
        }
      }
      for (uint r = 0u; r < 4u; r++) {
        total[r] = fused(float(dots[r]), scale, total[r]);
        if (mins == 1u) total[r] = fused(float(sums[r]), least, total[r]);
      }
    }
  }
  uint column = (first_pair + pair) * 32u + lane;
  if (column >= n) return;
  for (uint r = 0u; r < 4u; r++) if (row + r < rows)
    put(row + r, column, mul(fused(65025.0, total[8u + r], fused(255.0, total[4u + r], total[r])), row_scale[row + r]));
}
