// Weights of 8 or 4 bits with ratios: four levels of a column in a word.
#ifdef ROUTED
#define column_scale Numbers(own_tile.at.scales).at
#define levels Words(own_tile.at.levels).at
#else
layout(std430, binding = 6) readonly buffer Cs { float column_scale[]; };
layout(std430, binding = 7) readonly buffer Lv { uint levels[]; };  // 16 bytes
#endif
uint level_of(uint code) { return levels[code / 4u] >> (8u * (code % 4u)) & 255u; }
#include "levels.glsl"
int byte_(uint word, uint at) { return int(word << (24u - 8u * at)) >> 24; }
// Word of the ratios of four columns, and of their weights, for a quad of inputs: [ratios, a byte for each 128 inputs |
// steps of 64, a word for each quad], or, of four bits, steps of [ratios, a byte for each 32 | a word for two quads].
uint ratios_at(uint pair, uint strip, uint four_columns, uint quad) {
  if (FOUR) return (pair * steps + quad / 16u) * 272u + strip * 8u + quad / 8u % 2u * 4u + four_columns;
  return pair * (ratio_words + steps * 512u) + quad / 32u * 8u + strip * 4u + four_columns;
}
uint weights_at(uint pair, uint strip, uint four_columns, uint quad) {
  if (FOUR) return (pair * steps + quad / 16u) * 272u + 16u + strip * 128u + quad % 16u / 2u * 16u + 4u * four_columns;
  uint tile = pair * (ratio_words + steps * 512u) + ratio_words + quad / 16u * 512u + strip * 256u;
  return tile + quad % 16u * 16u + 4u * four_columns;
}
// one quad of four columns
uvec4 levels_at(uvec4 words, uint quad) {
  if (!FOUR) return words;
  uvec4 lo, hi;
  for (int i = 0; i < 4; i++) unpack(words[i], lo[i], hi[i]);
  return quad % 2u == 0u ? lo : hi;
}
