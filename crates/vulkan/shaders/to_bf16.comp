#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// rows of f32 to rows of packed pairs of bf16, the width padded to 32 with zeros
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 1) writeonly buffer R { uint y[]; };
layout(push_constant) uniform P { uint width, words; };
void main() {
  uint word = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y, k = 2u * word;
  if (word >= words) return;
  uint a = k < width ? bf16_round(x[row * width + k]) : 0u, b = k + 1u < width ? bf16_round(x[row * width + k + 1u]) : 0u;
  y[row * words + word] = (a >> 16) | b;
}
