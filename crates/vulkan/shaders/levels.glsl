// Levels of codes of 4 bits, many at a time. Uses `level_of`.
layout(constant_id = 4) const bool FOUR = true;
// Copies of a table of pairs of levels, side by side: with 32 of them a lane reads its own bank whatever its codes are.
layout(constant_id = 5) const uint COPIES = 4;
shared uint table[(FOUR ? 256u : 1u) * COPIES];
// Levels that rise by one are reckoned.
bool is_even;
uint less;
uint lowered(uint codes) { return ((codes | 0x80808080u) - less) ^ 0x80808080u; }
// Of others two, of the halves of a byte, are looked up, behind a barrier.
void make_table() {
  if (!FOUR) return;
  less = (0u - level_of(0u) & 255u) * 0x01010101u;
  is_even = less <= 0x80808080u;
  for (uint i = 0u; i < 4u; i++) is_even = is_even && levels[i] == lowered(0x03020100u + 0x04040404u * i);
  if (is_even) return;
  uint t = gl_LocalInvocationIndex;
  for (uint b = t; b < 256u; b += gl_WorkGroupSize.x) {
    uint two = level_of(b & 15u) | level_of(b >> 4) << 16;
    for (uint copy = 0u; copy < COPIES; copy++) table[b * COPIES + (copy + t) % COPIES] = two;
  }
}
// of the low halves, a quad of inputs, and of the high ones, the next
void unpack(uint u, out uint lo, out uint hi) {
  if (is_even) { lo = lowered(u & 0x0f0f0f0fu); hi = lowered(u >> 4 & 0x0f0f0f0fu); return; }
  uint own = gl_LocalInvocationIndex % COPIES;
  uint p = table[(u & 255u) * COPIES + own] | table[(u >> 8 & 255u) * COPIES + own] << 8;
  uint q = table[(u >> 16 & 255u) * COPIES + own] | table[(u >> 24) * COPIES + own] << 8;
  lo = p & 0xffffu | q << 16;
  hi = p >> 16 | q & 0xffff0000u;
}
