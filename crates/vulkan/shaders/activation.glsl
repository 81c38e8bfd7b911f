// Activations of one number (crates/kernels/src/pointwise.rs). a, b, c, d: the constants of the kind.
const uint SILU = 0u, SCALED_SILU = 1u, GELU_TANH = 2u, GELU = 3u, RELU_SQUARED = 4u, XIELU = 5u, CLAMPED = 6u;
float gelu_of(float x, float t, float e) {
  float p = uintBitsToFloat(0x3cfd9330u);
  p = fused(p, t, uintBitsToFloat(0xbe1ebe88u));
  p = fused(p, t, uintBitsToFloat(0x3e831a06u));
  p = fused(p, t, uintBitsToFloat(0xbe1ff846u));
  p = fused(p, t, uintBitsToFloat(0x3e28957fu));
  p = fused(p, t, uintBitsToFloat(0x3d4a7b16u));
  p = fused(p, t, uintBitsToFloat(0x3dd3db89u));
  p = fused(p, t, uintBitsToFloat(0x3dd2db21u));
  p = fused(p, t, uintBitsToFloat(0x3dd48186u));
  float xh = mul(x, mul(mul(t, p), e));
  return x >= 0.0 ? sub(x, xh) : xh;
}
// All have one power of e and one quotient, which are long, in common.
float activated(uint kind, float a, float b, float c, float d, float x) {
  if (kind == RELU_SQUARED) { float r = 0.0 > x ? 0.0 : x; return mul(r, r); }
  float minus = sub(0.0, x), size = x > minus ? x : minus, over = x, argument = minus;
  if (kind == SCALED_SILU) { float z = mul(x, a); over = mul(z, b); argument = sub(0.0, z); }
  if (kind == GELU_TANH) argument = sub(0.0, mul(mul(x, 1.595769), fused(mul(x, x), 0.044715, 1.0)));
  if (kind == GELU) { over = 1.0; argument = mul(mul(size, size), -0.5); }
  if (kind == XIELU) argument = x > d ? d : x;  // a, b, c, d: positive, negative, beta, eps
  if (kind == CLAMPED) { over = x > a ? a : x; argument = sub(0.0, mul(over, 1.702)); }
  float e = exp_(argument);
  if (kind == XIELU) {
    float line = mul(c, x);
    return x >= 0.0 ? fused(mul(a, x), x, line) : fused(sub(sub(e, 1.0), x), b, line);
  }
  float q = quotient(over, kind == GELU ? fused(size, uintBitsToFloat(0x3e851eb8u), 1.0) : add(1.0, e));
  return kind == GELU ? gelu_of(x, q, e) : q;
}
// what the activated gate is multiplied by
float factor_of(uint kind, float a, float up) {
  if (kind != CLAMPED) return up;
  float u = up > a ? a : up, least = sub(0.0, a);
  return add(least > u ? least : u, 1.0);
}
