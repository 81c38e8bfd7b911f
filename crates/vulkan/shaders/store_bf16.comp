#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// Keys and values of a row and head go to the cache. A value that is not finite becomes 0, and its key NaN.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float qkv[]; };
layout(std430, binding = 1) readonly buffer S { uint slots[]; };
layout(std430, binding = 2) buffer K { uint kv[]; };
layout(push_constant) uniform P { uint kv_heads, head_dim, keys_at, width, block_size, block_words, head_words; };
shared uint broken;
void main() {
  uint row = group().x, head = group().y, l = gl_LocalInvocationIndex;
  uint key = row * width + keys_at + head * head_dim, value = key + kv_heads * head_dim;
  uint slot = slots[row], token = slot % block_size;
  uint keys = slot / block_size * block_words + head * head_words, values = keys + block_size * head_dim / 2u;
  if (l == 0u) broken = 0u;
  barrier();
  for (uint d = l; d < head_dim; d += 64u) if ((bf16_round(qkv[value + d]) & 0x7f800000u) == 0x7f800000u) atomicOr(broken, 1u);
  barrier();
  for (uint p = l; p < head_dim / 2u; p += 64u) {
    uint both = (bf16_round(qkv[key + 2u * p]) >> 16) | bf16_round(qkv[key + 2u * p + 1u]);
    kv[keys + token / 16u * 8u * head_dim + p * 16u + token % 16u] = broken == 0u ? both : 0x7fc07fc0u;
  }
  for (uint d = l; d < head_dim; d += 64u) {
    uint bits = bf16_round(qkv[value + d]), shift = token % 2u * 16u;
    bits = (bits & 0x7f800000u) == 0x7f800000u ? 0u : bits >> 16;
    uint at = values + token / 32u * 16u * head_dim + (d / 16u * 16u + token % 32u / 2u) * 16u + d % 16u;
    // the other half is another token's
    atomicAnd(kv[at], ~(0xffffu << shift));
    atomicOr(kv[at], bits << shift);
  }
}
