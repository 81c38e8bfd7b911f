#version 450
#extension GL_GOOGLE_include_directive : require
#include "order.glsl"
#include "best.glsl"
// What was selected of a row goes where as many are as are above it.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { uvec2 chosen[]; };  // [row][count]
layout(std430, binding = 1) writeonly buffer R { uvec2 best[]; };   // [row][stride]
layout(push_constant) uniform P { uint count, stride; };
void main() {
  uint i = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y, rank = 0u;
  if (i >= count) return;
  uvec2 own = chosen[row * count + i], key = key_of(own.x, own.y);
  for (uint other = 0u; other < count; other++) {
    uvec2 it = chosen[row * count + other];
    if (is_above(key_of(it.x, it.y), key)) rank++;
  }
  best[row * stride + rank] = own;
}
