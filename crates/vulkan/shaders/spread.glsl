// Spreads what is large in heads (crates/kernels/src/spread.rs), in shared memory: `spread_head[len]`, whole heads. A run
// is the largest power of two that divides `head_dim`.
float sign_of(uint i) { return (bitCount(i & (i >> 1)) & 1) == 1 ? -1.0 : 1.0; }
uint run_of(uint head_dim) { return 1u << findLSB(head_dim); }
void turn_signs(uint len, uint head_dim) {
  uint run = run_of(head_dim);
  for (uint d = gl_LocalInvocationIndex; d < len; d += gl_WorkGroupSize.x) spread_head[d] = mul(spread_head[d], sign_of(d % run));
  barrier();
}
void butterflies(uint len, uint head_dim) {
  uint run = run_of(head_dim);
  for (uint distance = 1u; distance < run; distance *= 2u) {
    for (uint p = gl_LocalInvocationIndex; p < len / 2u; p += gl_WorkGroupSize.x) {
      uint i = p / distance * 2u * distance + p % distance;
      float a = spread_head[i], b = spread_head[i + distance];
      spread_head[i] = add(a, b);
      spread_head[i + distance] = sub(a, b);
    }
    barrier();
  }
}
void spread(uint len, uint head_dim) { barrier(); turn_signs(len, head_dim); butterflies(len, head_dim); }
void gather(uint len, uint head_dim) { barrier(); butterflies(len, head_dim); turn_signs(len, head_dim); }
// One scale for a head: its largest magnitude, as bits, and what an integer is.
bool is_live(uint most) { return most < 0x7f800000u && most >= 0x0d800000u; }
float scale_of(uint most) {
  if (is_live(most)) return quotient(uintBitsToFloat(most), 127.0);
  return most < 0x7f800000u ? 0.0 : uintBitsToFloat(0x7fc00000u);
}
int to_int(float x, float inverse) {
  return clamp(int(floatBitsToUint(add(mul(x, inverse), ROUNDER)) - floatBitsToUint(ROUNDER)), -127, 127);
}
uint quad_of(uint at, bool live, float inverse) {
  uint word = 0u;
  for (uint c = 0u; c < 4u; c++) word |= uint((live ? to_int(spread_head[at + c], inverse) : 0) & 255) << (8u * c);
  return word;
}
