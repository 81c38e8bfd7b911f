#version 450
#extension GL_GOOGLE_include_directive : require
#include "routed.glsl"
#include "exact.glsl"
#include "order.glsl"
// bf16 in the order of pairs: one chain along the inputs, the odd product of a pair first. Lane = output column, as in
// the packed layout; eight rows with a pair of strips.
layout(local_size_x = 32, local_size_y = 2) in;
layout(std430, binding = 0) readonly buffer A { uint x[]; };
#ifdef ROUTED
#define w Words(own_tile.at.weights).at
#else
layout(std430, binding = 1) readonly buffer B { uint w[]; };
#endif
#include "out.glsl"
shared float results[8 * 32];
float result(uint r, uint k, uint row, uint column) { return results[r * 32u + k]; }
void main() {
  uint lane = gl_LocalInvocationID.x, first = gl_LocalInvocationID.y * 4u, pair = group().y;
  TILE(row, count, 8u);
  float total[4] = float[4](0.0, 0.0, 0.0, 0.0);
  for (uint p = 0u; p < steps * 16u; p++) {
    uint ww = w[pair * steps * 512u + p / 16u * 512u + lane / 16u * 256u + p % 16u * 16u + lane % 16u];
    for (uint r = 0u; r < 4u; r++) if (first + r < count) {
      uint xx = x[(row + first + r) * steps * 16u + p];
      total[r] = plus_exact(low(xx), low(ww), plus_exact(high(xx), high(ww), total[r]));
    }
  }
  for (uint r = 0u; r < 4u; r++) results[(first + r) * 32u + lane] = total[r];
  barrier();
  uint column = (first_pair + pair) * 32u;
  for (uint i = gl_LocalInvocationIndex; i < to_put(count, 32u); i += 64u) put(i, row, 1u, column, 32u);
}
