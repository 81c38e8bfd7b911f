#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
layout(local_size_x = 32, local_size_y = 2) in;
layout(std430, binding = 0) readonly buffer A { uint x[]; };
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 2) buffer R { float y[]; };
layout(std430, binding = 3) readonly buffer Bi { float bias[]; };
layout(std430, binding = 4) readonly buffer Rs { float row_scale[]; };
layout(std430, binding = 5) readonly buffer U { uint used[]; };
layout(std430, binding = 6) readonly buffer Cs { float column_scale[]; };
layout(std430, binding = 7) readonly buffer Lv { uint levels[]; };  // 16 bytes
layout(push_constant) uniform P { uint rows, n, steps, first_pair, has_bias, add_, width, at_, ratio_words; };
#include "out.glsl"
#include "integers.glsl"
int level(uint code) { return int((levels[code / 4u] >> (8u * (code % 4u))) & 255u); }
void main() {
  uint lane = gl_LocalInvocationID.x, pair = group().x;
  uint row = group().y * 8u + gl_LocalInvocationID.y * 4u, planes = planes_of(row);
  int total[12] = int[12](0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  uint stride = steps * 16u;
  for (uint s = 0u; s < steps; s++) {
    // ratios [strip][group][16 columns] i8, then half-size tiles [8 lines][16 columns][4]: low halves quad 2j, high ones quad 2j + 1
    uint base = (pair * steps + s) * 272u, strip = lane / 16u, column_ = lane % 16u;
    for (uint group = 0u; group < 2u; group++) {
      uint at = strip * 32u + group * 16u + column_;
      int ratio = int(w[base + at / 4u] << (24u - 8u * (at % 4u))) >> 24;
      int sum[12] = int[12](0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
      for (uint line = group * 4u; line < group * 4u + 4u; line++) {
        uint u = w[base + 16u + strip * 128u + line * 16u + column_];
        int lo = 0, hi = 0;
        for (uint c = 0u; c < 4u; c++) {
          lo |= level((u >> (8u * c)) & 15u) << (8u * c);
          hi |= level((u >> (8u * c + 4u)) & 15u) << (8u * c);
        }
        for (uint plane = 0u; plane < planes; plane++) for (uint r = 0u; r < 4u; r++) if (row + r < rows) {
          uint xa = (plane * rows + row + r) * stride + s * 16u + line * 2u;
          sum[plane * 4u + r] += dot4(int(x[xa]), lo, 0) + dot4(int(x[xa + 1u]), hi, 0);
        }
      }
      for (uint i = 0u; i < 12u; i++) total[i] += ratio * sum[i];
    }
  }
  uint column = (first_pair + pair) * 32u + lane;
  if (column >= n) return;
  for (uint r = 0u; r < 4u; r++) if (row + r < rows) put_sums(row + r, column, total[r], total[4u + r], total[8u + r]);
}
