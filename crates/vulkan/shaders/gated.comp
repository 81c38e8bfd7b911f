#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "activation.glsl"
// gate and up lie in turns of 16 (of fewer at the end)
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float gate_up[]; };
layout(std430, binding = 1) writeonly buffer R { float y[]; };
layout(push_constant) uniform P { uint width, kind; float a, b, c, d; };
void main() {
  uint k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y;
  if (k >= width) return;
  uint first = k / 16u * 16u, count = min(16u, width - first);
  uint at = row * 2u * width + 2u * first + (k - first);
  y[row * width + k] = mul(activated(kind, a, b, c, d, gate_up[at]), factor_of(kind, a, gate_up[at + count]));
}
