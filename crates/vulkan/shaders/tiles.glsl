// Integer products of 128 rows with 64 columns, 8 x 4 a lane: digits and levels pass through shared memory. Outliers
// are rare: the quads of inputs that any of the rows has as outliers are noted on the way, then listed in order, and a
// short product of their other digits is made. Uses, of the digits, `x` and `x1`.
layout(std430, binding = 4) readonly buffer Rs { float row_scale[]; };
layout(std430, binding = 5) readonly buffer U { uint used[]; };
const uint ROWS = 128u, LISTED = 1024u, SEEN = 512u;
#ifdef MATRICES
// [row or column][64 bytes, and a pad], where matrices are loaded from; as below where they are not
const uint LINE = 10u;
shared uvec2 xs[128 * 10], ws[64 * 10];
uvec4 rows_at(uint i) { return uvec4(xs[2u * i], xs[2u * i + 1u]); }
uvec4 columns_at(uint i) { return uvec4(ws[2u * i], ws[2u * i + 1u]); }
void put_rows(uint i, uvec4 v) { xs[2u * i] = v.xy; xs[2u * i + 1u] = v.zw; }
void put_columns(uint i, uvec4 v) { ws[2u * i] = v.xy; ws[2u * i + 1u] = v.zw; }
void put_row(uint i, uint r, uint v) { xs[2u * i + r / 2u][r % 2u] = v; }
#else
shared uvec4 xs[16 * 33];  // [quad][128 rows], and a pad
shared uvec4 ws[16 * 17];  // [quad][64 columns]
uvec4 rows_at(uint i) { return xs[i]; }
uvec4 columns_at(uint i) { return ws[i]; }
void put_rows(uint i, uvec4 v) { xs[i] = v; }
void put_columns(uint i, uvec4 v) { ws[i] = v; }
void put_row(uint i, uint r, uint v) { xs[i][r] = v; }
#endif
shared uint seen[SEEN], listed[LISTED], count, planes;  // seen: a bit for each quad
// Of 64 columns as 16 by four: their pair, which is any where there are none, and their strip.
uint pair_of(uint fours) { return min(group().y * 2u + fours / 8u, pairs - 1u); }
uint strip_of(uint fours) { return fours / 4u % 2u; }
void begin() {
  uint t = gl_LocalInvocationIndex, first = group().x * ROWS;
  if (t == 0u) { planes = 1u; count = 0u; }
  for (uint i = t; i < SEEN; i += 256u) seen[i] = 0u;
  barrier();
  if (t < min(ROWS, rows - first)) atomicMax(planes, used[first + t]);
  barrier();
}
// low digits of a step: of two rows four quads
void load(uint s, out uvec4 digits[2]) {
  for (uint i = 0u; i < 2u; i++) {
    uint id = gl_LocalInvocationIndex + i * 256u, row = group().x * ROWS + id / 4u, fours = s * 4u + id % 4u;
    digits[i] = uvec4(0u);
    if (row >= rows) continue;
    digits[i] = x[row * steps * 4u + fours];
    if (planes == 1u) continue;
    uvec4 other = x[(rows + row) * steps * 4u + fours] | x[(2u * rows + row) * steps * 4u + fours];
    uint bits = 0u;
    for (uint c = 0u; c < 4u; c++) bits |= uint(other[c] != 0u) << (fours * 4u + c) % 32u;
    if (bits != 0u && fours / 8u < SEEN) atomicOr(seen[fours / 8u], bits);
  }
}
void share(uvec4 digits[2]) {
  for (uint i = 0u; i < 2u; i++) {
    uint id = gl_LocalInvocationIndex + i * 256u, row = id / 4u, q = id % 4u * 4u;
#ifdef MATRICES
    put_rows(row * LINE / 2u + q / 4u, digits[i]);
#else
    for (uint c = 0u; c < 4u; c++) put_row((q + c) * 33u + row / 4u, row % 4u, digits[i][c]);
#endif
  }
}
// Lists quads, in order; the number of them. All, where there is no room for the list.
uint listed_quads() {
  uint words = min(steps / 2u + 1u, SEEN);
  barrier();
  for (uint i = gl_LocalInvocationIndex; i < words; i += 256u) {
    uint to = 0u;
    for (uint j = 0u; j < i; j++) to += bitCount(seen[j]);
    for (uint left = seen[i]; left != 0u; left &= left - 1u) {
      if (to < LISTED) listed[to] = i * 32u + findLSB(left);
      to++;
    }
    if (i + 1u == words) count = to;
  }
  barrier();
  if (steps > 2u * SEEN) count = LISTED + 1u;
  barrier();
  return count <= LISTED ? count : steps * 16u;
}
uint listed_quad(uint at) { return count <= LISTED ? listed[at] : at; }
// other digits of 16 listed quads
void share_others(uint plane, uint first, uint others) {
  for (uint i = 0u; i < 8u; i++) {
    uint slot = gl_LocalInvocationIndex / 128u + 2u * i, r = gl_LocalInvocationIndex % 128u, row = group().x * ROWS + r;
    uint own = 0u;
    if (first + slot < others && row < rows) own = x1[(plane * rows + row) * steps * 16u + listed_quad(first + slot)];
    put_row(slot * 33u + r / 4u, r % 4u, own);
  }
}
// every eighth row together
void put_all(float all[32]) {
  uint t = gl_LocalInvocationIndex;
  for (uint i = 0u; i < 8u; i++) {
    vec4 own;
    for (uint j = 0u; j < 32u; j += 4u) if (j == i * 4u) own = vec4(all[j], all[j + 1u], all[j + 2u], all[j + 3u]);
    barrier();
    put_rows(t, floatBitsToUint(own));
    barrier();
    uint row = group().x * ROWS + i, count = row < rows ? min(16u, (rows - row + 7u) / 8u) : 0u;
    for (uint k = t; k < to_put(count, 64u); k += 256u) put(k, row, 8u, (first_pair + group().y * 2u) * 32u, 64u);
  }
}
