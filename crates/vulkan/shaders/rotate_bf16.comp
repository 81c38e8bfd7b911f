#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
// A value that is not finite becomes 0, and its key, or what else is in it, NaN. LATENTS: a value is the first numbers
// of its key.
shared uint is_broken;
bool is_finite(uint bits) { return (bits & 0x7f800000u) != 0x7f800000u; }
#ifdef LATENTS
#include "latents.glsl"
#else
#define PER_WORD 2u
#include "rotate.glsl"
bool store_value() {
  uint l = gl_LocalInvocationIndex, shift = token % 2u * 16u;
  if (l == 0u) is_broken = 0u;
  barrier();
  for (uint d = l; d < head_dim; d += 64u) {
    uint bits = bf16_round(head_[d]);
    if (!is_finite(bits)) { atomicOr(is_broken, 1u); bits = 0u; }
    uint at = values + token / 32u * 16u * head_dim + (d / 16u * 16u + token % 32u / 2u) * 16u + d % 16u;
    // the other half is another token's
    atomicAnd(kv[at], ~(0xffffu << shift));
    atomicOr(kv[at], bits >> 16 << shift);
  }
  barrier();
  return is_broken == 0u;
}
#endif
void store_key(bool has_value) {
  if (latent > 0u) {
    if (gl_LocalInvocationIndex == 0u) is_broken = 0u;
    barrier();
    for (uint d = gl_LocalInvocationIndex; d < latent; d += 64u)
      if (!is_finite(bf16_round(head_[d]))) atomicOr(is_broken, 1u);
    barrier();
    has_value = is_broken == 0u;
  }
  for (uint p = gl_LocalInvocationIndex; p < head_dim / 2u; p += 64u) {
    uint both = (bf16_round(head_[2u * p]) >> 16) | bf16_round(head_[2u * p + 1u]);
    uint broken = 2u * p < latent ? 0u : 0x7fc07fc0u;
    kv[keys + token / 16u * 8u * head_dim + p * 16u + token % 16u] = has_value ? both : broken;
  }
}
