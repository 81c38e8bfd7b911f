#version 450
#extension GL_GOOGLE_include_directive : require
#include "order.glsl"
#include "best.glsl"
// The `count` largest of a part of a row, in any order: found digit by digit from the top, as the key that `count` of them
// reach. Rows are logits, or what was selected of their parts.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uint x[]; };          // [row][width], or two numbers each
layout(std430, binding = 1) writeonly buffer R { uvec2 chosen[]; };   // [row][stride]: bits, id
layout(push_constant) uniform P { uint width, per_part, count, stride, selected; };
shared uint bins[256];
shared uint found, left, taken;
void main() {
  uint t = gl_LocalInvocationIndex, part = group().x, row = group().y;
  uint begin = part * per_part, end = min(begin + per_part, width), to = row * stride + part * count;
  uint need = min(count, end - begin);
  uvec2 mask = uvec2(0u), least = uvec2(0u);
  if (t == 0u) { found = 0u; left = 0u; taken = 0u; }
  if (need == 1u) {
    // no digits for the largest one
    uvec2 most = uvec2(0u);
    for (uint i = begin + t; i < end; i += 256u) {
      uint at = row * width + i;
      uvec2 key = selected == 1u ? key_of(x[2u * at], x[2u * at + 1u]) : key_of(x[at], i);
      if (is_above(key, most)) most = key;
    }
    barrier();
    atomicMax(found, most.x);
    barrier();
    if (most.x == found) atomicMax(left, most.y);
    barrier();
    mask = uvec2(0xffffffffu);
    least = uvec2(found, left);
  } else for (uint digit = 0u; digit < 8u; digit++) {
    uint word = digit / 4u, shift = 24u - 8u * (digit % 4u);
    barrier();
    bins[t] = 0u;
    barrier();
    for (uint i = begin + t; i < end; i += 256u) {
      uint at = row * width + i;
      uvec2 key = selected == 1u ? key_of(x[2u * at], x[2u * at + 1u]) : key_of(x[at], i);
      if ((key & mask) == least) atomicAdd(bins[key[word] >> shift & 255u], 1u);
    }
    barrier();
    uint above = 0u;
    for (uint bin = t + 1u; bin < 256u; bin++) above += bins[bin];
    if (above < need && above + bins[t] >= need) { found = t; left = need - above; }
    barrier();
    mask[word] |= 255u << shift;
    least[word] |= found << shift;
    need = left;
    // all of that bin are among them
    if (bins[found] == need) break;
  }
  barrier();
  for (uint i = begin + t; i < end; i += 256u) {
    uint at = row * width + i, bits = selected == 1u ? x[2u * at] : x[at], id = selected == 1u ? x[2u * at + 1u] : i;
    if (!is_above(least, key_of(bits, id) & mask)) chosen[to + atomicAdd(taken, 1u)] = uvec2(bits, id);
  }
}
