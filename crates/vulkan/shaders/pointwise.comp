#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// What is done number by number: crates/kernels/src/pointwise.rs.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer R { float x[]; };
layout(std430, binding = 1) readonly buffer A { float y[]; };
layout(std430, binding = 2) readonly buffer B { float gates[]; };
// by_width, at: of the rows of y where they are others
layout(push_constant) uniform P { uint width, operation, by_width, at_; float by; uint per_head; };
void main() {
  uint k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = group().y;
  if (k >= width) return;
  uint i = row * width + k;
  float v = x[i];
  switch (operation) {
    case 0: v = mul(v, by); break;
    case 1: { float least = sub(0.0, by); v = v < least ? least : v; v = v > by ? by : v; break; }
    case 2: v = mul(v, y[row * by_width + at_ + k]); break;
    case 3: v = fused(y[i], by, v); break;
    case 4: v = sub(by, quotient(mul(2.0, by), add(exp_(mul(v, quotient(2.0, by))), 1.0))); break;
    case 5: {  // x = y / (1 + exp(-gate)) + x
      float scale = quotient(1.0, add(1.0, exp_(sub(0.0, gates[row]))));
      v = fused(y[i], scale, v);
      break;
    }
    case 6: {  // the gates of heads, behind the queries
      float gate = y[row * by_width + at_ + (per_head != 0u ? k / per_head : k)];
      float bottom = add(1.0, exp_(sub(0.0, gate)));
      v = per_head != 0u ? mul(v, quotient(1.0, bottom)) : quotient(v, bottom);
      break;
    }
  }
  x[i] = v;
}
