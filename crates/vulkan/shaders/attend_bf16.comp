#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "attend.glsl"
layout(constant_id = 1) const bool TILES = true;
// pairs of numbers, to whole steps of 32
uint query_words() { return (head_dim / 2u + 15u) / 16u * 16u; }
void load_queries() {
  uint words = query_words();
  for (uint i = gl_LocalInvocationIndex; i < count * words; i += LANES) {
    uint p = i % words, at = query_at(i / words) + 2u * p;
    words_[i] = 2u * p < head_dim ? (bf16_round(qkv[at]) >> 16) | bf16_round(qkv[at + 1u]) : 0u;
  }
}
void score(uint j, out float s[QUERIES]) {
  uint token = (start + j) % block_size, words = query_words(), k[16];
  uint keys = head_at(start + j) + token / 16u * 8u * head_dim + token % 16u;
  for (uint i = 0u; i < QUERIES; i++) s[i] = 0.0;
  for (uint first = 0u; first < words; first += 16u) {
    for (uint p = 0u; p < 16u; p++) k[p] = 2u * (first + p) < head_dim ? kv[keys + (first + p) * 16u] : 0u;
    for (uint i = 0u; i < count; i++) {
      float even = 0.0, odd = 0.0;
      for (uint p = 0u; p < 16u; p++) {
        uint own = words_[i * words + first + p];
        if (TILES) { even = plus_exact(low(own), low(k[p]), even); odd = plus_exact(high(own), high(k[p]), odd); }
        else s[i] = plus_exact(low(own), low(k[p]), plus_exact(high(own), high(k[p]), s[i]));
      }
      if (TILES) s[i] = add(s[i], add(even, odd));
    }
  }
  for (uint i = 0u; i < QUERIES; i++) s[i] = mul(s[i], scale);
}
float weight(float x) { return softmax_weight(x); }
void prepare_weights() {}
// pairs of tokens of a page, of number d
void load_values(uint position, uint d, out uint v[16]) {
  uint token = position % block_size;
#ifdef LATENTS
  uint shift = d % 2u * 16u, at = head_at(position) + token / 16u * 8u * head_dim + d / 2u * 16u;
  for (uint p = 0u; p < 8u; p++) {
    uvec4 own = kv4[(at + p / 4u * 8u * head_dim) / 4u + p % 4u] >> shift & 0xffffu;
    v[2u * p] = own.x | own.y << 16;
    v[2u * p + 1u] = own.z | own.w << 16;
  }
#else
  uint at = head_at(position) + block_size * head_dim / 2u + token / 32u * 16u * head_dim + d / 16u * 256u + d % 16u;
  for (uint p = 0u; p < 16u; p++) v[p] = kv[at + p * 16u];
#endif
}
void values(uint part, uint parts, uint d, out float value[QUERIES]) {
  for (uint i = 0u; i < QUERIES; i++) value[i] = 0.0;
  for (uint j = from; j < seen; j += 32u) {
    uint v[16];
    load_values(start + j, d, v);
    for (uint i = 0u; part + parts * i < count; i++) {
      uint of = (part + parts * i) * SPLIT + j;
      float even = 0.0, odd = 0.0;
      for (uint p = 0u; p < 16u; p++) {
        float a = scores[of + 2u * p], b = scores[of + 2u * p + 1u];
        if (TILES) { even = plus_exact(a, low(v[p]), even); odd = plus_exact(b, high(v[p]), odd); }
        else value[i] = plus_exact(a, low(v[p]), plus_exact(b, high(v[p]), value[i]));
      }
      if (TILES) value[i] = add(value[i], add(even, odd));
    }
  }
}
void finish() {}
