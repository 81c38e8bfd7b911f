#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
#ifdef LATENTS
#include "latents.glsl"
#else
#define PER_WORD 4u
#include "rotate.glsl"
#endif
#define spread_head head_
#include "spread.glsl"
// Both are spread and have a scale each. A value that is not finite has the scale 0, and its key NaN. LATENTS: a value
// is the first numbers of its key and has its scale; runs are as long as divide both widths.
shared uint most_;
uint most_of_head() {
  uint own = 0u;
  if (gl_LocalInvocationIndex == 0u) most_ = 0u;
  spread(head_dim, head_dim | latent);
  for (uint d = gl_LocalInvocationIndex; d < head_dim; d += 64u) own = max(own, floatBitsToUint(head_[d]) & 0x7fffffffu);
  atomicMax(most_, own);
  barrier();
  return most_;
}
float inverse_of(uint most) { return is_live(most) ? quotient(127.0, uintBitsToFloat(most)) : 0.0; }
void put_scale(uint at, float scale) {
  float run = float(run_of(head_dim | latent));
  uint bits = is_nan(floatBitsToUint(scale)) ? 0x7fc00000u : floatBitsToUint(quotient(scale, run));
  if (gl_LocalInvocationIndex == 0u) kv[values + block_size * head_dim / 4u + at] = bits;
}
#ifndef LATENTS
bool store_value() {
  uint most = most_of_head();
  float scale = scale_of(most), inverse = inverse_of(most);
  for (uint d = gl_LocalInvocationIndex; d < head_dim; d += 64u) {
    uint bits = uint((is_live(most) ? to_int(head_[d], inverse) : 0) & 255), shift = token % 4u * 8u;
    uint at = values + token / 32u * 8u * head_dim + (d / 16u * 8u + token % 32u / 4u) * 16u + d % 16u;
    // the other bytes are other tokens'
    atomicAnd(kv[at], ~(0xffu << shift));
    atomicOr(kv[at], bits << shift);
  }
  bool is_finite = !is_nan(floatBitsToUint(scale));
  put_scale(block_size + token, is_finite ? scale : 0.0);
  return is_finite;
}
#endif
void store_key(bool is_finite) {
  uint most = most_of_head();
  for (uint p = gl_LocalInvocationIndex; p < head_dim / 4u; p += 64u)
    kv[keys + token / 16u * 4u * head_dim + p * 16u + token % 16u] = quad_of(4u * p, is_live(most), inverse_of(most));
  float scale = scale_of(most);
  put_scale(token, is_finite ? scale : uintBitsToFloat(0x7fc00000u));
  if (latent > 0u) put_scale(block_size + token, is_nan(floatBitsToUint(scale)) ? 0.0 : scale);
}
