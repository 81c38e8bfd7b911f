#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "activation.glsl"
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer R { float x[]; };
layout(push_constant) uniform P { uint width, kind; float a, b, c, d; };
void main() {
  uint k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
  if (k >= width) return;
  uint at = group().y * width + k;
  x[at] = activated(kind, a, b, c, d, x[at]);
}
