// Gates of layers with a state (crates/kernels/src/recurrence.rs).
float sigmoid_of(float x, float gate) { return quotient(x, add(1.0, exp_(sub(0.0, gate)))); }
float silu(float x) { return sigmoid_of(x, x); }
float softplus(float x) {
  if (x > 20.0) return x;
  // ln(1 + y) = 2 artanh(y / (2 + y)), with 1/17, 1/15, .. 1/3
  float y = exp_(x > 0.0 ? sub(0.0, x) : x), s = quotient(y, add(2.0, y)), square = mul(s, s);
  float series = uintBitsToFloat(0x3d70f0f1u);
  series = fused(series, square, uintBitsToFloat(0x3d888889u));
  series = fused(series, square, uintBitsToFloat(0x3d9d89d9u));
  series = fused(series, square, uintBitsToFloat(0x3dba2e8cu));
  series = fused(series, square, uintBitsToFloat(0x3de38e39u));
  series = fused(series, square, uintBitsToFloat(0x3e124925u));
  series = fused(series, square, uintBitsToFloat(0x3e4ccccdu));
  series = fused(series, square, uintBitsToFloat(0x3eaaaaabu));
  float log_ = mul(2.0, fused(mul(s, square), series, s));
  return x > 0.0 ? add(x, log_) : log_;
}
