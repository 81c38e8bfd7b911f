#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
#include "attend.glsl"
#define spread_head scores
#include "spread.glsl"
// queries are spread as the keys were; what has become of the values is gathered
shared uint query_most[QUERIES];
shared float query_scale[QUERIES], top_[QUERIES];
// where the scales of the keys of a block begin, those of its values behind them
uint scales_at(uint position) {
#ifdef LATENTS
  return head_at(position) + block_size * head_dim / 4u;
#else
  return head_at(position) + block_size * head_dim / 2u;
#endif
}
// Runs are as long as divide both widths.
void load_queries() {
  uint l = gl_LocalInvocationIndex, words = head_dim / 4u;
  if (l < QUERIES) query_most[l] = 0u;
  for (uint i = l; i < count * head_dim; i += LANES) scores[i] = qkv[query_at(i / head_dim) + i % head_dim];
  spread(count * head_dim, head_dim | value_dim);
  for (uint i = l; i < count * head_dim; i += LANES) atomicMax(query_most[i / head_dim], floatBitsToUint(scores[i]) & 0x7fffffffu);
  barrier();
  if (l < count) query_scale[l] = mul(scale_of(query_most[l]), scale);
  for (uint i = l; i < count * words; i += LANES) {
    uint most = query_most[i / words];
    words_[i] = quad_of(4u * i, is_live(most), is_live(most) ? quotient(127.0, uintBitsToFloat(most)) : 0.0);
  }
}
void score(uint j, out float s[QUERIES]) {
  uint token = (start + j) % block_size, words = head_dim / 4u, k[4];
  uint keys = head_at(start + j) + token / 16u * 4u * head_dim + token % 16u;
  int sums[QUERIES];
  for (uint i = 0u; i < QUERIES; i++) sums[i] = 0;
  for (uint first = 0u; first < words; first += 4u) {
    for (uint p = 0u; p < 4u; p++) k[p] = kv[keys + (first + p) * 16u];
    for (uint i = 0u; i < count; i++) {
      for (uint p = 0u; p < 4u; p++) sums[i] += dot4(int(words_[i * words + first + p]), int(k[p]), 0);
    }
  }
  float by = uintBitsToFloat(kv[scales_at(start + j) + token]);
  for (uint i = 0u; i < QUERIES; i++) s[i] = i < count ? mul(mul(float(sums[i]), query_scale[i]), by) : 0.0;
}
float weight(float x) { return x < -27.5 ? 0.0 : exp_(x); }
// times the scales of the values, then two digits of each: `words_` has [query][low, high][quad]
void prepare_weights() {
  uint l = gl_LocalInvocationIndex, q = l / 32u;
  barrier();
  if (l >= from && l < seen) {
    float by = uintBitsToFloat(kv[scales_at(start + l) + block_size + (start + l) % block_size]);
    for (uint i = 0u; i < count; i++) {
      bool its = start + l >= first_[i] && start + l < last_[i];
      scores[i * SPLIT + l] = its ? mul(scores[i * SPLIT + l], by) : 0.0;
    }
  }
  barrier();
  float top = 0.0;
  if (q < count) for (uint j = from + l % 32u; j < seen; j += 32u) { float w = scores[q * SPLIT + j]; top = top > w ? top : w; }
  top = largest(top);
  if (l % 32u == 0u) top_[q] = top;
  barrier();
  for (uint i = 0u; i < 2u; i++) {
    uint p = l / 64u + 4u * i, quad = l % 64u;
    if (p >= count || 4u * quad < from || 4u * quad >= seen) continue;
    float factor = top_[p] > 0.0 ? quotient(16383.0, top_[p]) : 0.0;
    uint low_ = 0u, high_ = 0u;
    for (uint c = 0u; c < 4u; c++) {
      uint n = floatBitsToUint(add(mul(scores[p * SPLIT + 4u * quad + c], factor), ROUNDER)) - floatBitsToUint(ROUNDER);
      low_ |= (n & 127u) << (8u * c);
      high_ |= (n >> 7 & 127u) << (8u * c);
    }
    words_[p * 128u + quad] = low_;
    words_[p * 128u + 64u + quad] = high_;
  }
}
// four tokens each of a page, of number d
void load_values(uint position, uint d, out uint v[8]) {
  uint token = position % block_size;
#ifdef LATENTS
  uint shift = d % 4u * 8u, at = head_at(position) + token / 16u * 4u * head_dim + d / 4u * 16u;
  for (uint p = 0u; p < 8u; p++) {
    uvec4 own = kv4[(at + p / 4u * 4u * head_dim) / 4u + p % 4u] >> shift & 255u;
    v[p] = own.x | own.y << 8 | own.z << 16 | own.w << 24;
  }
#else
  uint at = head_at(position) + block_size * head_dim / 4u + token / 32u * 8u * head_dim + d / 16u * 128u + d % 16u;
  for (uint p = 0u; p < 8u; p++) v[p] = kv[at + p * 16u];
#endif
}
void values(uint part, uint parts, uint d, out float value[QUERIES]) {
  int sums[QUERIES];
  for (uint i = 0u; i < QUERIES; i++) sums[i] = 0;
  for (uint j = from; j < seen; j += 32u) {
    uint v[8];
    load_values(start + j, d, v);
    for (uint i = 0u; part + parts * i < count; i++) {
      uint of = (part + parts * i) * 128u + j / 4u;
      int low_ = 0, high_ = 0;
      for (uint p = 0u; p < 8u; p++) {
        low_ += dot4(int(words_[of + p]), int(v[p]), 0);
        high_ += dot4(int(words_[of + 64u + p]), int(v[p]), 0);
      }
      sums[i] += low_ + 128 * high_;
    }
  }
  for (uint i = 0u; i < QUERIES; i++) {
    uint p = part + parts * i;
    value[i] = p < count ? mul(float(sums[i]), mul(top_[p], uintBitsToFloat(0x38800200u))) : 0.0;
  }
}
void finish() { gather(count * value_dim, head_dim | value_dim); }
