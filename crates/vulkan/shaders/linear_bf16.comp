#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
layout(constant_id = 1) const bool TILES = true;
// lane = output column, as in the packed layout. tiles: even and odd products of 32 numbers from zero, then both are
// added; pairs: one chain, the odd one of a pair first
layout(local_size_x = 32, local_size_y = 2) in;
layout(std430, binding = 0) readonly buffer A { uint x[]; };
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 2) buffer R { float y[]; };
layout(std430, binding = 3) readonly buffer Bi { float bias[]; };
layout(push_constant) uniform P { uint rows, n, steps, first_pair, has_bias, add_, width, at_, ratio_words; };
#include "out.glsl"
void main() {
  uint lane = gl_LocalInvocationID.x, pair = group().x;
  uint row = group().y * 8u + gl_LocalInvocationID.y * 4u;
  float total[4] = float[4](0.0, 0.0, 0.0, 0.0);
  uint stride = steps * 16u;
  for (uint s = 0u; s < steps; s++) {
    float even[4] = float[4](0.0, 0.0, 0.0, 0.0), odd[4] = float[4](0.0, 0.0, 0.0, 0.0);
    uint at = (pair * steps + s) * 512u + lane / 16u * 256u + lane % 16u;
    for (uint p = 0u; p < 16u; p++) {
      uint ww = w[at + p * 16u];
      float wl = low(ww), wh = high(ww);
      for (uint r = 0u; r < 4u; r++) {
        uint xx = row + r < rows ? x[(row + r) * stride + s * 16u + p] : 0u;
        // products of bf16 numbers are exact, so fused or not is the same bit
        float a = mul(low(xx), wl), b = mul(high(xx), wh);
        if (TILES) { even[r] = add(even[r], a); odd[r] = add(odd[r], b); }
        else total[r] = add(add(total[r], b), a);
      }
    }
    if (TILES) for (uint r = 0u; r < 4u; r++) total[r] = add(total[r], add(even[r], odd[r]));
  }
  uint column = (first_pair + pair) * 32u + lane;
  if (column >= n) return;
  for (uint r = 0u; r < 4u; r++) if (row + r < rows) put(row + r, column, total[r]);
}
