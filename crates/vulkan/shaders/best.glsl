// Logits as their sampler orders them (crates/kernels/src/sampling/best.rs), in two integers of which no two are alike:
// by value, -0 as +0, infinity and then what is no number on top; of equal ones the lower id first.
uvec2 key_of(uint bits, uint id) {
  uint rising = bits == 0x80000000u ? 0u : bits;
  rising = (rising & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : rising >> 31 == 1u ? ~rising : rising | 0x80000000u;
  return uvec2(rising, ~id);
}
bool is_above(uvec2 a, uvec2 b) { return a.x > b.x || a.x == b.x && a.y > b.y; }
