#version 450
#extension GL_GOOGLE_include_directive : require
#include "order.glsl"
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { uint rows[]; };
layout(std430, binding = 1) readonly buffer B { float x[]; };
layout(std430, binding = 2) writeonly buffer R { float y[]; };
layout(push_constant) uniform P { uint width; };
void main() {
  uint k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y;
  if (k < width) y[row * width + k] = x[rows[row] * width + k];
}
