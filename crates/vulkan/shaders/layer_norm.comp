#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
layout(local_size_x = 16) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 1) readonly buffer B { float weight[]; };
layout(std430, binding = 2) readonly buffer C { float bias[]; };
layout(std430, binding = 3) writeonly buffer R { float y[]; };
layout(push_constant) uniform P { uint width, first_row, has_bias; float eps; };
void main() {
  uint from = (first_row + group().x) * width, to = group().x * width, lane = gl_LocalInvocationIndex;
  float total = 0.0, squares = 0.0;
  for (uint i = lane; i < width; i += 16u) total = add(total, x[from + i]);
  float mean = quotient(joined(total), float(width));
  for (uint i = lane; i < width; i += 16u) { float far = sub(x[from + i], mean); squares = fused(far, far, squares); }
  float factor = quotient(1.0, root(add(quotient(joined(squares), float(width)), eps)));
  for (uint i = lane; i < width; i += 16u) {
    float normed = mul(sub(x[from + i], mean), factor);
    y[to + i] = has_bias == 1u ? fused(normed, weight[i], bias[i]) : mul(normed, weight[i]);
  }
}
