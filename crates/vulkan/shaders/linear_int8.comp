#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
// activations in three planes of digits; a ratio per 128 weights before the steps of a pair
layout(local_size_x = 32, local_size_y = 2) in;
layout(std430, binding = 0) readonly buffer A { uint x[]; };
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 2) buffer R { float y[]; };
layout(std430, binding = 3) readonly buffer Bi { float bias[]; };
layout(std430, binding = 4) readonly buffer Rs { float row_scale[]; };
layout(std430, binding = 5) readonly buffer U { uint used[]; };
layout(std430, binding = 6) readonly buffer Cs { float column_scale[]; };
layout(push_constant) uniform P { uint rows, n, steps, first_pair, has_bias, add_, width, at_, ratio_words; };
#include "out.glsl"
#include "integers.glsl"
void main() {
  uint lane = gl_LocalInvocationID.x, pair = group().x;
  uint row = group().y * 8u + gl_LocalInvocationID.y * 4u, planes = planes_of(row);
  int total[12] = int[12](0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  uint stride = steps * 16u, base = pair * (ratio_words + steps * 512u);
  for (uint s = 0u; s < steps; s++) {
    uint at = base + ratio_words + s * 512u + lane / 16u * 256u + lane % 16u;
    uint ra = s / 2u * 32u + lane;
    int ratio = int(w[base + ra / 4u] << (24u - 8u * (ra % 4u))) >> 24;
    for (uint plane = 0u; plane < planes; plane++) {
      int sum[4] = int[4](0, 0, 0, 0);
      for (uint p = 0u; p < 16u; p++) {
        int ww = int(w[at + p * 16u]);
        for (uint r = 0u; r < 4u; r++)
          if (row + r < rows) sum[r] += dot4(int(x[(plane * rows + row + r) * stride + s * 16u + p]), ww, 0);
      }
      for (uint r = 0u; r < 4u; r++) total[plane * 4u + r] += ratio * sum[r];
    }
  }
  uint column = (first_pair + pair) * 32u + lane;
  if (column >= n) return;
  for (uint r = 0u; r < 4u; r++) if (row + r < rows) put_sums(row + r, column, total[r], total[4u + r], total[8u + r]);
}
