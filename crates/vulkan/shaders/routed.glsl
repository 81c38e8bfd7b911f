// Rows of one matrix, a tile of them in each workgroup; or of several matrices (ROUTED), where a tile has rows of one and
// says where its numbers are, by addresses. Names of what is read are macros then.
#ifdef ROUTED
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fours { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Numbers { float at[]; };
#define TILE(row, count, most) own_tile = tiles[group().x]; uint row = own_tile.first, count = own_tile.count; if (count == 0u) return
#else
#define TILE(row, count, most) uint row = group().x * most, count = min(most, rows - row)
#endif
