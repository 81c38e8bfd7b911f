#version 450
#extension GL_GOOGLE_include_directive : require
#include "entry.glsl"
#include "exact.glsl"
#include "order.glsl"
// Rows of y, each plus what its experts gave, one after another as by gather.comp, by their entries of the list
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer L { Entry list[]; };
layout(std430, binding = 1) readonly buffer O { uint of_row[]; };
layout(std430, binding = 2) readonly buffer A { float x[]; };
layout(std430, binding = 3) buffer R { float y[]; };
layout(push_constant) uniform P { uint width, per_row, has_factors; };
void main() {
  uint k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y;
  if (k >= width) return;
  float sum = y[row * width + k];
  for (uint i = 0u; i < per_row; i++) {
    uint at = of_row[row * per_row + i];
    float v = x[at * width + k];
    if (has_factors == 1u) v = mul(v, list[at].of_results);
    sum = fused(list[at].weight, v, sum);
  }
  y[row * width + k] = sum;
}
