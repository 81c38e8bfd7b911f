// Activations of one number (crates/kernels/src/pointwise.rs). a, b, c, d: the constants of the kind.
const uint SILU = 0u, SCALED_SILU = 1u, GELU_TANH = 2u, GELU = 3u, RELU_SQUARED = 4u, XIELU = 5u, CLAMPED = 6u;
float sigmoid_of(float x, float argument) { return quotient(x, add(1.0, exp_(sub(0.0, argument)))); }
float gelu(float x) {
  float minus = sub(0.0, x), a = x > minus ? x : minus;
  float t = quotient(1.0, fused(a, uintBitsToFloat(0x3e851eb8u), 1.0));
  float p = uintBitsToFloat(0x3cfd9330u);
  p = fused(p, t, uintBitsToFloat(0xbe1ebe88u));
  p = fused(p, t, uintBitsToFloat(0x3e831a06u));
  p = fused(p, t, uintBitsToFloat(0xbe1ff846u));
  p = fused(p, t, uintBitsToFloat(0x3e28957fu));
  p = fused(p, t, uintBitsToFloat(0x3d4a7b16u));
  p = fused(p, t, uintBitsToFloat(0x3dd3db89u));
  p = fused(p, t, uintBitsToFloat(0x3dd2db21u));
  p = fused(p, t, uintBitsToFloat(0x3dd48186u));
  float xh = mul(x, mul(mul(t, p), exp_(mul(mul(a, a), -0.5))));
  return x >= 0.0 ? sub(x, xh) : xh;
}
float activated(uint kind, float a, float b, float c, float d, float x) {
  if (kind == SILU) return sigmoid_of(x, x);
  if (kind == SCALED_SILU) { float z = mul(x, a); return sigmoid_of(mul(z, b), z); }
  if (kind == GELU_TANH) {
    float cubic = fused(mul(x, x), 0.044715, 1.0);
    return sigmoid_of(x, mul(mul(x, 1.595769), cubic));
  }
  if (kind == GELU) return gelu(x);
  if (kind == RELU_SQUARED) { float r = 0.0 > x ? 0.0 : x; return mul(r, r); }
  if (kind == XIELU) {  // positive, negative, beta, eps
    float low_ = x > d ? d : x, line = mul(c, x);
    float below = fused(sub(sub(exp_(low_), 1.0), x), b, line);
    return x >= 0.0 ? fused(mul(a, x), x, line) : below;
  }
  float g = x > a ? a : x;
  return sigmoid_of(g, mul(g, 1.702));
}
// what the activated gate is multiplied by
float factor_of(uint kind, float a, float up) {
  if (kind != CLAMPED) return up;
  float u = up > a ? a : up, least = sub(0.0, a);
  return add(least > u ? least : u, 1.0);
}
