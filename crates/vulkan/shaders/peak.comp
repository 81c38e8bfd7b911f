#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
// As many operations as registers allow: of four bytes, of f32 in two roundings and in one.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer R { uint y[]; };
layout(push_constant) uniform P { uint rounds, operation; };
void main() {
  uint i = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
  if (operation == 0u) {
    int sums[8] = int[8](0, 0, 0, 0, 0, 0, 0, 0), x = int(y[i]);
    for (uint r = 0u; r < rounds; r++) for (uint k = 0u; k < 8u; k++) sums[k] += dot4(x, sums[k] ^ int(k), 0);
    for (uint k = 1u; k < 8u; k++) sums[0] ^= sums[k];
    y[i] = uint(sums[0]);
    return;
  }
  float x = uintBitsToFloat(y[i] & 0x3fffffffu);
  float sums[8] = float[8](0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
  for (uint r = 0u; r < rounds; r++) for (uint k = 0u; k < 8u; k++) {
    if (operation == 1u) sums[k] = add(mul(sums[k], x), 1.0);
    else sums[k] = fma(sums[k], x, 1.0);
  }
  float all = sums[0];
  for (uint k = 1u; k < 8u; k++) all = add(all, sums[k]);
  y[i] = floatBitsToUint(all);
}
