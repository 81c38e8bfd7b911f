#version 450
#extension GL_GOOGLE_include_directive : require
#include "entry.glsl"
#include "order.glsl"
// What the experts of a few rows have to do, of which rows go to which: entries by rising expert, then by rising row, those
// of each row, and tiles of both products: entry i of an expert begins one if it is a multiple of the rows of a tile.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer C { uint chosen[]; };  // experts of all rows, then their weights
layout(std430, binding = 1) readonly buffer E { Expert experts[]; };
layout(std430, binding = 2) writeonly buffer L { Entry list[]; };
layout(std430, binding = 3) writeonly buffer O { uint of_row[]; };
layout(std430, binding = 4) writeonly buffer T { Tile tiles[]; };  // of one product, then of the other
layout(push_constant) uniform P { uint entries, per_row, of_inputs, second, tile_rows[2]; };
void main() {
  uint i = group().x * 64u + gl_LocalInvocationID.x;
  if (i >= entries) return;
  uint row = i / per_row, expert = chosen[i], start = 0u, nth = 0u, count = 0u, in_row = 0u;
  for (uint j = 0u; j < entries; j++) {
    uint other = chosen[j];
    if (other == expert) { count += 1u; nth += j < i ? 1u : 0u; }
    if (other < expert) { start += 1u; in_row += j / per_row == row ? 1u : 0u; }
  }
  uint at = start + nth;
  float weight = uintBitsToFloat(chosen[entries + i]);
  list[at].row = row;
  list[at].factor = of_inputs == 1u ? weight : 1.0;
  list[at].of_results = experts[expert].factor;
  list[at].weight = of_inputs == 1u ? 1.0 : weight;
  of_row[row * per_row + in_row] = at;
  for (uint product = 0u; product < 2u; product++) {
    uint rows = tile_rows[product], tile = product * second + at;
    list[at].shifts[product] = experts[expert].shifts[product];
    tiles[tile].at = experts[expert].at[product];
    tiles[tile].first = at;
    tiles[tile].count = nth % rows == 0u ? min(rows, count - nth) : 0u;
  }
}
