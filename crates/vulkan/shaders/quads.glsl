// Levels of weights in groups, 16 bytes of the buffer at a time. Uses `w4`, and what groups.glsl and levels.glsl have.
const int ONES = 0x01010101;
// two quads of four columns of a step, from an even one on
void quads_at(uint base, uint quad, uint strip, uint fours, out uvec4 first, out uvec4 second) {
  uint tiles = base + (mins == 1u ? 2u : 1u) * scale_words();
  if (four == 0u) {
    uint at = (tiles + strip * 256u + quad * 16u) / 4u + fours;
    first = w4[at];
    second = w4[at + 4u];
  } else {
    uvec4 codes = w4[(tiles + strip * 128u + quad * 8u) / 4u + fours];
    for (int j = 0; j < 4; j++) unpack(codes[j], first[j], second[j]);
  }
}
