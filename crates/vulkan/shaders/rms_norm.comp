#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
layout(local_size_x = 16) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 1) readonly buffer B { float weight[]; };
layout(std430, binding = 2) writeonly buffer R { float y[]; };
layout(push_constant) uniform P { uint width, first_row; float eps; };
void main() {
  uint from = (first_row + group().x) * width, to = group().x * width, lane = gl_LocalInvocationIndex;
  float squares = 0.0;
  for (uint i = lane; i < width; i += 16u) { float v = x[from + i]; squares = fused(v, v, squares); }
  float factor = quotient(1.0, root(add(quotient(joined(squares), float(width)), eps)));
  for (uint i = lane; i < width; i += 16u) y[to + i] = mul(mul(x[from + i], factor), weight[i]);
}
