#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// Rows of a table by token, of weights in the groups of a file.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer T { uint tokens[]; };
layout(std430, binding = 1) readonly buffer W { uint w[]; };
layout(std430, binding = 2) readonly buffer L { uint levels[]; };
layout(std430, binding = 3) writeonly buffer R { float y[]; };
layout(push_constant) uniform P { uint width, first_pair, pairs, steps, step_words, scale_kind, group_, mins, four; };
#include "groups.glsl"
void main() {
  uint row = group().y, k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, token = tokens[row], pair = token / 32u;
  if (k >= width || pair < first_pair || pair >= first_pair + pairs) return;
  uint base = ((pair - first_pair) * steps + k / 64u) * step_words, column = token % 32u, group = k % 64u / group_;
  uint tiles = base + (mins == 1u ? 2u : 1u) * scale_words();
  int level = quad_at(tiles, k % 64u / 4u, column) << (24u - 8u * (k % 4u)) >> 24;
  float v = mul(scale_at(base, group, column), float(level));
  y[row * width + k] = mins == 1u ? add(v, scale_at(base + scale_words(), group, column)) : v;
}
