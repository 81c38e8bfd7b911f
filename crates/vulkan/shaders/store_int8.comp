#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "spread.glsl"
// Keys and values of a row and head are spread and go to the cache with a scale each. A value that is not finite has the
// scale 0, and its key NaN.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float qkv[]; };
layout(std430, binding = 1) readonly buffer S { uint slots[]; };
layout(std430, binding = 2) buffer K { uint kv[]; };
layout(push_constant) uniform P { uint kv_heads, head_dim, keys_at, width, block_size, block_words, head_words; };
uint stored(float scale) { return is_nan(floatBitsToUint(scale)) ? 0x7fc00000u : floatBitsToUint(quotient(scale, float(run_of(head_dim)))); }
void main() {
  uint row = group().x, head = group().y, l = gl_LocalInvocationIndex;
  uint key = row * width + keys_at + head * head_dim, value = key + kv_heads * head_dim;
  uint slot = slots[row], token = slot % block_size;
  uint keys = slot / block_size * block_words + head * head_words;
  uint values = keys + block_size * head_dim / 4u, scales = values + block_size * head_dim / 4u;
  for (uint d = l; d < head_dim; d += 64u) spread_head[d] = qkv[key + d];
  spread(head_dim);
  uint most = most_of(head_dim);
  float key_scale = scale_of(most), inverse = is_live(most) ? quotient(127.0, uintBitsToFloat(most)) : 0.0;
  for (uint p = l; p < head_dim / 4u; p += 64u)
    kv[keys + token / 16u * 4u * head_dim + p * 16u + token % 16u] = quad_of(4u * p, is_live(most), inverse);
  barrier();
  for (uint d = l; d < head_dim; d += 64u) spread_head[d] = qkv[value + d];
  spread(head_dim);
  most = most_of(head_dim);
  float value_scale = scale_of(most);
  inverse = is_live(most) ? quotient(127.0, uintBitsToFloat(most)) : 0.0;
  for (uint d = l; d < head_dim; d += 64u) {
    uint bits = uint((is_live(most) ? to_int(spread_head[d], inverse) : 0) & 255), shift = token % 4u * 8u;
    uint at = values + token / 32u * 8u * head_dim + (d / 16u * 8u + token % 32u / 4u) * 16u + d % 16u;
    // the other bytes are other tokens'
    atomicAnd(kv[at], ~(0xffu << shift));
    atomicOr(kv[at], bits << shift);
  }
  if (is_nan(floatBitsToUint(value_scale))) { key_scale = value_scale; value_scale = 0.0; }
  if (l == 0u) { kv[scales + token] = stored(key_scale); kv[scales + block_size + token] = stored(value_scale); }
}
