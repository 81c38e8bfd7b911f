#version 450
#extension GL_GOOGLE_include_directive : require
#include "matrices.glsl"
#include "order.glsl"
// As many products of matrices of bytes as registers allow.
layout(local_size_x_id = 3) in;
layout(std430, binding = 0) buffer R { int y[]; };
layout(push_constant) uniform P { uint rounds; };
void main() {
  uint i = group().x * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
  DIGITS a = DIGITS(int8_t(y[i]));
  LEVELS b = LEVELS(int8_t(y[i] >> 8));
  SUMS sums[8];
  for (uint k = 0u; k < 8u; k++) sums[k] = SUMS(int(k));
  for (uint r = 0u; r < rounds; r++) for (uint k = 0u; k < 8u; k++) sums[k] = coopMatMulAdd(a, b, sums[k]);
  for (uint k = 1u; k < 8u; k++) sums[0] = sums[0] + sums[k];
  y[i] = sums[0][0];
}
