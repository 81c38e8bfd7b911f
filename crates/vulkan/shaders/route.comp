#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// The experts of a row and their weights, as `route` (crates/kernels/src/routing.rs) has them: by shares in the softmax, or
// by sigmoids. An expert's place is the number of those before it, so lanes need no order; sums are one lane's.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { float logits[]; };
layout(std430, binding = 1) readonly buffer B { float bias[]; };
layout(std430, binding = 2) writeonly buffer C { uint picked[]; };  // experts of all rows, then their weights
layout(push_constant) uniform P { uint experts, per_row, entries, has_bias, kind, over_chosen; float sum_eps, factor; };
const uint SOFTMAX = 0u, SIGMOID = 1u, ROOM = 1024u;
shared uint keys[ROOM];
shared float scores[ROOM];
shared uint own[ROOM];
shared uint most;
shared float total;
// rises with the number, as total_cmp orders them; what is no number is above all
uint key_of(float x) {
  uint bits = is_nan(floatBitsToUint(x)) ? 0x7fc00000u : floatBitsToUint(x);
  return bits >> 31 == 1u ? ~bits : bits | 0x80000000u;
}
float ranked(uint key) { return uintBitsToFloat(key >> 31 == 1u ? key & 0x7fffffffu : ~key); }
float sigmoid(float x) { return quotient(1.0, add(1.0, exp_(sub(0.0, x)))); }
void main() {
  uint row = group().x, t = gl_LocalInvocationIndex, first = row * experts;
  bool of_shares = kind == SOFTMAX && has_bias == 1u;
  if (t == 0u) most = 0u;
  barrier();
  for (uint e = t; e < experts; e += 256u) {
    float logit = logits[first + e];
    atomicMax(most, key_of(logit));
    scores[e] = kind == SOFTMAX ? logit : sigmoid(logit);
  }
  barrier();
  // the largest logit is the first one chosen, but of biased shares
  float largest = ranked(most);
  if (kind == SOFTMAX) for (uint e = t; e < experts; e += 256u) scores[e] = exp_(sub(scores[e], largest));
  barrier();
  if (t == 0u && (of_shares || kind == SOFTMAX && over_chosen == 0u)) {
    float sum = 0.0;
    for (uint e = 0u; e < experts; e++) sum = add(sum, scores[e]);
    total = sum;
  }
  barrier();
  for (uint e = t; e < experts; e += 256u) {
    float by = kind == SIGMOID ? scores[e] : logits[first + e];
    if (of_shares) by = quotient(scores[e], total);
    keys[e] = key_of(has_bias == 1u ? add(by, bias[e]) : by);
  }
  barrier();
  for (uint e = t; e < experts; e += 256u) {
    uint key = keys[e], before = 0u;
    for (uint other = 0u; other < experts; other++)
      before += keys[other] > key || keys[other] == key && other < e ? 1u : 0u;
    if (before < per_row) { own[before] = e; picked[row * per_row + before] = e; }
  }
  barrier();
  if (t != 0u) return;
  float sum = kind == SOFTMAX ? total : 0.0;
  if (over_chosen == 1u) {
    sum = 0.0;
    for (uint i = 0u; i < per_row; i++) sum = add(sum, scores[own[i]]);
    if (kind == SIGMOID) sum = add(sum, sum_eps);
  }
  for (uint i = 0u; i < per_row; i++) {
    float v = scores[own[i]];
    if (kind == SOFTMAX || over_chosen == 1u) v = quotient(v, sum);
    picked[entries + row * per_row + i] = floatBitsToUint(mul(v, factor));
  }
}
