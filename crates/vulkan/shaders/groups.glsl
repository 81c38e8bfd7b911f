// Weights in the quantization groups of a file (crates/kernels/src/quant/blocks.rs): [scales | minima | tile 0 | tile 1] for
// each 64 weights of 32 columns. Uses `w`, `levels`, and of the push constants step_words, scale_kind, group_, mins, four.
const uint HALF = 0u, SUPER = 1u, POWER = 2u, FULL = 3u;
uint bytes_at(uint base, uint at, uint count) { return w[base + at / 4u] >> (8u * (at % 4u)) & (count == 1u ? 0xffu : 0xffffu); }
// a number of 16 bits, exactly, denormal or not
float half_of(uint h) {
  uint sign = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
  if (e == 31u) return uintBitsToFloat(sign | 0x7f800000u | m << 13);
  if (e != 0u) return uintBitsToFloat(sign | (e + 112u) << 23 | m << 13);
  float small = mul(float(m), uintBitsToFloat(0x33800000u));  // 2^-24
  return sign == 0u ? small : uintBitsToFloat(floatBitsToUint(small) | sign);
}
uint scale_words() {
  uint groups = 64u / group_;
  return 8u * (scale_kind == HALF ? 2u * groups : scale_kind == SUPER ? 2u + groups : scale_kind == POWER ? groups : 4u * groups);
}
// a scale or a minimum: of a group, in a column of a pair
float scale_at(uint base, uint group, uint column) {
  if (scale_kind == HALF) return half_of(bytes_at(base, (group * 32u + column) * 2u, 2u));
  if (scale_kind == SUPER) {
    int ratio = int(bytes_at(base, 64u + group * 32u + column, 1u) << 24) >> 24;
    return mul(half_of(bytes_at(base, column * 2u, 2u)), float(ratio));
  }
  if (scale_kind == POWER) return uintBitsToFloat(bytes_at(base, group * 32u + column, 1u) << 23);
  return uintBitsToFloat(w[base + group * 32u + column]);
}
uint level_of(uint code) { return levels[code / 4u] >> (8u * (code % 4u)) & 255u; }
// four levels of a column: quad 0 to 15 of a step
int quad_at(uint tiles, uint quad, uint column) {
  if (four == 0u) return int(w[tiles + column / 16u * 256u + quad * 16u + column % 16u]);
  uint codes = w[tiles + column / 16u * 128u + quad / 2u * 16u + column % 16u] >> (4u * (quad % 2u)), word = 0u;
  for (uint c = 0u; c < 4u; c++) word |= level_of(codes >> (8u * c) & 15u) << (8u * c);
  return int(word);
}
