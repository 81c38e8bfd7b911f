#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
layout(constant_id = 1) const bool TILES = true;
// One strip of 16 outputs of one of the two matrices of an adapter, for a listed row (crates/kernels/src/low_rank).
layout(local_size_x = 16) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 1) readonly buffer L { uint listed[]; };
layout(std430, binding = 2) readonly buffer S { uvec4 spans[]; };  // strip, first pair of inputs, pairs, line
layout(std430, binding = 3) readonly buffer W { uint w[]; };       // [line][16]
layout(std430, binding = 4) buffer R { float y[]; };
// inner: the first matrix, from a listed row to the next of h, rounded; else from that to the listed row, added
layout(push_constant) uniform P { uint first, in_width, out_width, inner; };
void main() {
  uint index = group().x, lane = gl_LocalInvocationIndex, row = listed[first + index];
  uvec4 span = spans[group().y];
  uint from = (inner == 1u ? row : index) * in_width;
  float total = 0.0, even = 0.0, odd = 0.0;
  for (uint i = 0u; i < span.z; i++) {
    uint pair = span.y + i, weights = w[(span.w + i) * 16u + lane];
    if (TILES && pair % 16u == 0u) { total = add(total, add(even, odd)); even = 0.0; odd = 0.0; }
    float a = uintBitsToFloat(bf16_round(x[from + 2u * pair]));
    float b = 2u * pair + 1u < in_width ? uintBitsToFloat(bf16_round(x[from + 2u * pair + 1u])) : 0.0;
    a = mul(a, low(weights));
    b = mul(b, high(weights));
    if (TILES) { even = add(even, a); odd = add(odd, b); } else total = add(add(total, b), a);
  }
  if (TILES) total = add(total, add(even, odd));
  uint column = span.x * 16u + lane;
  if (column >= out_width) return;
  uint to = (inner == 1u ? index : row) * out_width + column;
  y[to] = inner == 1u ? uintBitsToFloat(bf16_round(total)) : add(y[to], total);
}
