#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "states.glsl"
#include "gates.glsl"
// A depthwise causal convolution (crates/kernels/src/convolution.rs). A lane has one channel of all rows of a span, and its
// newest inputs.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 1) writeonly buffer R { float y[]; };  // the same, or between gates others
layout(std430, binding = 2) readonly buffer W { float weight[]; };
layout(std430, binding = 3) readonly buffer B { float bias[]; };
layout(push_constant) uniform P { uint width, channels, taps, state, between_gates, has_silu, has_bias; };
const uint MOST = 8u;
void main() {
  uint c = group().x * 64u + gl_LocalInvocationIndex;
  if (c >= channels) return;
  uvec4 span = spans[2u * group().y];
  uint first = MOST - taps, save = span.w, last_save = save + spans[2u * group().y + 1u].x;
  float w[MOST], own[MOST];
  for (uint t = 0u; t < MOST; t++) {
    w[t] = t >= first ? weight[(t - first) * channels + c] : 0.0;
    own[t] = span.z != NONE && t >= first && t + 1u < MOST ? Slot(slots[span.z]).at[state + (t - first) * channels + c] : 0.0;
  }
  float start = has_bias == 1u ? bias[c] : 0.0;
  for (uint row = span.x; row < span.x + span.y; row++) {
    uint at = row * width + c;
    own[MOST - 1u] = between_gates == 1u ? mul(x[at], x[at + 2u * channels]) : x[at];
    float v = start;
    for (uint t = 0u; t < MOST; t++) if (t >= first) v = fused(w[t], own[t], v);
    if (between_gates == 1u) y[row * channels + c] = mul(x[at + channels], v);
    else y[at] = has_silu == 1u ? silu(v) : v;
    for (uint t = 1u; t < MOST; t++) own[t - 1u] = own[t];
    for (; save < last_save && saves[save].x == row; save++) {
      Slot to = Slot(slots[saves[save].y]);
      for (uint t = 0u; t + 1u < MOST; t++) if (t >= first) to.at[state + (t - first) * channels + c] = own[t];
    }
  }
}
