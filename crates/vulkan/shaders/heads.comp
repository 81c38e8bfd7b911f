#version 450
#extension GL_GOOGLE_include_directive : require
#include "entry.glsl"
#include "order.glsl"
// What products by head of a few rows have to do: entries head by head, each head's rows in order, and tiles of them as
// experts have. The row of an entry is its first number.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer H { Head heads[]; };
layout(std430, binding = 1) writeonly buffer L { Entry list[]; };
layout(std430, binding = 2) writeonly buffer T { Tile tiles[]; };
// width, stride: of a row, and from a head to the next
layout(push_constant) uniform P { uint entries, rows, width, stride, tile_rows; };
void main() {
  uint i = group().x * 64u + gl_LocalInvocationID.x, head = i / rows, row = i % rows;
  if (i >= entries) return;
  list[i].row = row * width + head * stride;
  list[i].shifts[0] = heads[head].shifts;
  tiles[i].at = heads[head].at;
  tiles[i].first = i;
  tiles[i].count = row % tile_rows == 0u ? min(tile_rows, rows - row) : 0u;
}
