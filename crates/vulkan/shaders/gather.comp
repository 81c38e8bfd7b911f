#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// Rows by a list, entries of `stride` words of which those from `first` on count. how: 0 row i of y is the listed one of x,
// 1 times a factor, 2 to the listed one of y is added row i of x times a factor, rounded once; it is word `how` of the entry
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { uint list[]; };
layout(std430, binding = 1) readonly buffer B { float x[]; };
layout(std430, binding = 2) buffer R { float y[]; };
layout(push_constant) uniform P { uint width, first, stride, how; };
void main() {
  uint k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y;
  if (k >= width) return;
  uint entry = (first + row) * stride, listed = list[entry] * width + k, own = row * width + k;
  float factor = uintBitsToFloat(list[entry + how]);
  if (how == 0u) y[own] = x[listed];
  else if (how == 1u) y[own] = mul(x[listed], factor);
  else y[listed] = fused(factor, x[own], y[listed]);
}
