#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// One operation on three numbers each, as the device computes it and as the kernels do.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float operands[]; };  // [count][3]
layout(std430, binding = 1) writeonly buffer R { float results[]; };
layout(push_constant) uniform P { uint count, operation; };
void main() {
  uint i = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
  if (i >= count) return;
  float x = operands[3 * i], y = operands[3 * i + 1], z = operands[3 * i + 2];
  precise float r = 0.0;
  switch (operation) {
    case 0: r = add(x, y); break;
    case 1: r = sub(x, y); break;
    case 2: r = mul(x, y); break;
    case 3: r = add(mul(x, y), z); break;  // two roundings
    case 4: r = fma(x, y, z); break;       // one, where the device fuses
    case 5: r = fused(x, y, z); break;
    case 6: r = quotient(x, y); break;
    case 7: r = root(x < 0.0 ? sub(0.0, x) : x); break;
    case 8: r = exp_(x); break;
    case 9: r = uintBitsToFloat(bf16_round(x)); break;
  }
  results[i] = r;
}
