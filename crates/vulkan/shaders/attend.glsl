// Attention, as both cache types share it. A workgroup has one split of 256 positions and up to 8 queries, rows x heads,
// of one kv head: each key and value comes from memory once for all of them. It leaves the maximum, the sum and the values
// of the split; the workgroup that is the last of its queries to finish, by a ticket, folds all splits in order. None
// waits for another. LATENTS: a value is the first numbers of its key.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { float qkv[]; };
layout(std430, binding = 1) readonly buffer T { uvec4 rows_[]; };  // position, end of the span's positions, first entry of the table
layout(std430, binding = 2) readonly buffer B { uint tables[]; };
layout(std430, binding = 3) readonly buffer K { uint kv[]; };
layout(std430, binding = 4) readonly buffer S { float sinks[]; };
layout(std430, binding = 5) writeonly buffer R { float y[]; };
// tickets, which are 0 between dispatches; then of [row][head][split] the values, the maximum and the sum
layout(std430, binding = 6) coherent buffer W { uint left[]; };
// value_dim: width of a value; window, cap: 0 where there is none; by_cap: 2 / cap; tile_rows, tile_heads: of a
// workgroup; splits: room for those of a row
layout(push_constant) uniform P {
  uint heads, kv_heads, head_dim, value_dim, width;
  uint block_size, block_words, head_words, window, chunked, both_ways, has_sinks;
  float scale, cap, by_cap;
  uint first_row, end_row, tile_rows, tile_heads, splits;
};
const uint SPLIT = 256u, LANES = 256u, QUERIES = 8u, TICKETS = 16384u;
// Room for numbers of queries, for words of them, and for numbers of values in the registers of a lane.
#ifdef LATENTS
layout(std430, binding = 3) readonly buffer K4 { uvec4 kv4[]; };
const uint NUMBERS = QUERIES * 576u, WORDS = QUERIES * 288u, TOTALS = 2u * QUERIES;
#else
const uint NUMBERS = QUERIES * SPLIT, WORDS = 1024u, TOTALS = QUERIES;
#endif
#define NONE uintBitsToFloat(0xff800000u)
// Of each query, with 32 lanes: what its positions have; and its numbers, or the digits of its weights.
shared float scores[NUMBERS];
shared uint words_[WORDS];
shared float reduced[LANES];
shared uint first_[QUERIES], last_[QUERIES];
shared float max_[QUERIES], sum_[QUERIES];
shared bool is_last;
uint own_row, first_head, own_heads, kv_head, count, table, start, from, seen;
float total[TOTALS];

uint first_seen(uint position) {
  if (window == 0u) return 0u;
  if (chunked == 1u) return position / window * window;
  return position + 1u > window ? position + 1u - window : 0u;
}
uint last_seen(uint position, uint end) {
  if (both_ways == 0u) return position + 1u;
  return window == 0u ? end : min(position + window, end);
}
uint head_at(uint position) { return tables[table + position / block_size] * block_words + kv_head * head_words; }
float capped(float s) { return cap == 0.0 ? s : sub(cap, quotient(mul(2.0, cap), add(exp_(mul(s, by_cap)), 1.0))); }
uint row_of(uint q) { return own_row + q / own_heads; }
uint head_of(uint q) { return first_head + q % own_heads; }
uint query_at(uint q) { return row_of(q) * width + head_of(q) * head_dim; }
uint left_at(uint q, uint split) {
  return TICKETS + (((row_of(q) - first_row) * heads + head_of(q)) * splits + split) * (value_dim + 2u);
}
// the largest of 32 lanes, and the sum of the first 16 of them: joined by halves
float largest(float own) {
  uint l = gl_LocalInvocationIndex, k = l % 32u;
  barrier();
  reduced[l] = own;
  barrier();
  for (uint h = 16u; h > 0u; h /= 2u) {
    if (k < h) { float a = reduced[l], b = reduced[l + h]; reduced[l] = a > b ? a : b; }
    barrier();
  }
  return reduced[l - k];
}
float summed(float own) {
  uint l = gl_LocalInvocationIndex, k = l % 32u;
  barrier();
  reduced[l] = own;
  barrier();
  for (uint h = 8u; h > 0u; h /= 2u) {
    if (k < h) reduced[l] = add(reduced[l], reduced[l + h]);
    barrier();
  }
  return reduced[l - k];
}

// What differs by the type of the cache:
void load_queries();                                          // rounded, to `words_`
void score(uint j, out float s[QUERIES]);                     // of position `start + j`
float weight(float x);
void prepare_weights();                                       // for the products with values
void values(uint part, uint parts, uint d, out float value[QUERIES]);  // of queries part, part + parts, ..
void finish();                                                // the rows, which `scores` has

// A lane has one d, or some 256 apart, of queries part, part + parts, ..: which of `total` they are
uint parts_() { return max(LANES / value_dim, 1u); }
uint passes() { return (value_dim + LANES - 1u) / LANES; }
uint place(uint pass, uint i) { return pass * (TOTALS / passes()) + i; }

// All splits of the queries, from what each workgroup left: the running maximum, then what is kept and joined, then sums.
void fold(uint begin, uint end) {
  uint l = gl_LocalInvocationIndex, q = l / 32u, k = l % 32u, at = q * SPLIT;
  float most = 0.0, sum = 0.0;
  for (uint chunk = begin; chunk < end; chunk += 32u) {
    uint own_begin = q < count ? first_[q] / SPLIT : end, own_end = q < count ? (last_[q] + SPLIT - 1u) / SPLIT : end;
    bool has = chunk + k >= own_begin && chunk + k < own_end;
    uint its = has ? left_at(q, chunk + k - begin) + value_dim : 0u;
    float own = has ? uintBitsToFloat(left[its]) : 0.0, before = 0.0, here = 0.0;
    barrier();
    reduced[l] = own;
    if (has) scores[at + 64u + k] = uintBitsToFloat(left[its + 1u]);
    barrier();
    [[dont_unroll]] for (uint i = 0u; i < 32u; i++) {
      if (chunk + i < own_begin || chunk + i >= own_end) continue;
      float was = most, x = reduced[l - k + i];
      most = chunk + i > own_begin && most > x ? most : x;
      if (i == k) { before = was; here = most; }
    }
    if (has) { scores[at + k] = exp_(sub(before, here)); scores[at + 32u + k] = exp_(sub(own, here)); }
    barrier();
    [[dont_unroll]] for (uint i = 0u; i < 32u && k == 0u; i++) {
      if (chunk + i < own_begin || chunk + i >= own_end) continue;
      float x = scores[at + 64u + i];
      sum = chunk + i == own_begin ? x : fused(sum, scores[at + i], mul(x, scores[at + 32u + i]));
    }
    if (k == 0u) { max_[q] = most; sum_[q] = sum; }
    for (uint pass = 0u; pass < passes(); pass++) {
      uint part = (l + pass * LANES) / value_dim, d = (l + pass * LANES) % value_dim;
      for (uint i = 0u, p = part; part < parts_() && p < count; i++, p += parts_()) {
        uint its_begin = first_[p] / SPLIT, its_last = (last_[p] + SPLIT - 1u) / SPLIT - 1u;
        float x = total[place(pass, i)], value[16];
        [[dont_unroll]] for (uint s = chunk; s < chunk + 32u && s <= its_last; s += 16u) {
          // Loads do not wait for the chain.
          for (uint j = 0u; j < 16u; j++) value[j] = uintBitsToFloat(left[left_at(p, clamp(s + j, its_begin, its_last) - begin) + d]);
          for (uint j = 0u; j < 16u; j++) {
            uint of = p * SPLIT + s - chunk + j;
            float joined = fused(x, scores[of], mul(value[j], scores[of + 32u]));
            x = s + j <= its_begin ? value[j] : s + j <= its_last ? joined : x;
          }
        }
        total[place(pass, i)] = x;
      }
    }
  }
  barrier();
}

// one split of these rows, which are of one span
void attend(uint row, uint end_row_, uint ticket) {
  uint l = gl_LocalInvocationIndex, q = l / 32u, k = l % 32u;
  uint first = first_seen(rows_[row].x), last = last_seen(rows_[end_row_ - 1u].x, rows_[end_row_ - 1u].y);
  uint begin = first / SPLIT, end = (last + SPLIT - 1u) / SPLIT, split = begin + group().z;
  if (split >= end) return;
  own_row = row;
  count = (end_row_ - row) * own_heads;
  table = rows_[row].z;
  start = split * SPLIT;
  // what is seen of it, in whole pages of values
  from = (max(first, start) - start) / 32u * 32u;
  seen = (min(last - start, SPLIT) + 31u) / 32u * 32u;
  barrier();
  if (l < count) {
    uvec4 its = rows_[row_of(l)];
    first_[l] = first_seen(its.x);
    last_[l] = last_seen(its.x, its.y);
  }
  load_queries();
  barrier();
  if (l >= from && l < seen) {
    float s[QUERIES];
    bool is_seen = start + l >= first && start + l < last;
    if (is_seen) score(l, s);
    for (uint i = 0u; i < QUERIES; i++) if (i < count) scores[i * SPLIT + l] = s[i];
    for (uint i = 0u; i < count; i++) {
      // what is not seen has no weight
      bool its = is_seen && start + l >= first_[i] && start + l < last_[i];
      scores[i * SPLIT + l] = its ? capped(scores[i * SPLIT + l]) : NONE;
    }
  }
  barrier();
  float most = NONE;
  if (q < count) for (uint j = from + k; j < seen; j += 32u) { float s = scores[q * SPLIT + j]; most = most > s ? most : s; }
  most = largest(most);
  if (k == 0u) max_[q] = most;
  barrier();
  if (l >= from && l < seen) for (uint i = 0u; i < count; i++) scores[i * SPLIT + l] = weight(sub(scores[i * SPLIT + l], max_[i]));
  barrier();
  float sum = 0.0;
  if (q < count && k < 16u) for (uint j = from + k; j < seen; j += 16u) sum = add(sum, scores[q * SPLIT + j]);
  sum = summed(sum);
  if (k == 0u) sum_[q] = sum;
  prepare_weights();
  barrier();
  bool is_whole = begin + 1u == end;
  for (uint pass = 0u; pass < passes(); pass++) {
    uint part = (l + pass * LANES) / value_dim, d = (l + pass * LANES) % value_dim;
    if (part >= parts_()) break;
    float value[QUERIES];
    values(part, parts_(), d, value);
    for (uint i = 0u; i < QUERIES; i++) {
      uint p = part + parts_() * i;
      if (p >= count) break;
      if (is_whole) total[place(pass, i)] = value[i];
      else if (start < last_[p] && start + SPLIT > first_[p]) left[left_at(p, split - begin) + d] = floatBitsToUint(value[i]);
    }
  }
  if (!is_whole) {
    if (k == 0u && q < count && start < last_[q] && start + SPLIT > first_[q]) {
      uint at = left_at(q, split - begin) + value_dim;
      left[at] = floatBitsToUint(max_[q]);
      left[at + 1u] = floatBitsToUint(sum_[q]);
    }
    // What this one left is seen by the one that folds.
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
    if (l == 0u) {
      uint before = atomicAdd(left[ticket], 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
      is_last = before + 1u == end - begin;
      if (is_last) left[ticket] = 0u;
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (!is_last) return;
    fold(begin, end);
  }
  barrier();
  if (k == 0u && q < count && has_sinks == 1u) {
    float sink = sinks[head_of(q)], m = max_[q] > sink ? max_[q] : sink, keep = exp_(sub(max_[q], m));
    sum_[q] = fused(sum_[q], keep, exp_(sub(sink, m)));
    max_[q] = keep;
  }
  barrier();
  for (uint pass = 0u; pass < passes(); pass++) {
    uint part = (l + pass * LANES) / value_dim, d = (l + pass * LANES) % value_dim;
    for (uint i = 0u, p = part; part < parts_() && p < count; i++, p += parts_()) {
      float x = total[place(pass, i)];
      scores[p * value_dim + d] = quotient(has_sinks == 1u ? fused(x, max_[p], 0.0) : x, sum_[p]);
    }
  }
  finish();
  barrier();
  for (uint i = l; i < count * value_dim; i += LANES) {
    uint p = i / value_dim;
    y[(row_of(p) * heads + head_of(p)) * value_dim + i % value_dim] = scores[i];
  }
}
void main() {
  uvec3 g = group();
  uint group_heads = heads / kv_heads, tiles = (group_heads + tile_heads - 1u) / tile_heads;
  kv_head = g.y / tiles;
  first_head = kv_head * group_heads + g.y % tiles * tile_heads;
  own_heads = min(tile_heads, (kv_head + 1u) * group_heads - first_head);
  uint row = first_row + g.x * tile_rows, end = min(row + tile_rows, end_row);
  while (row < end) {
    uint next = row + 1u;
    while (next < end && rows_[next].z == rows_[row].z) next++;
    attend(row, next, (row - first_row) * gl_NumWorkGroups.y + g.y);
    row = next;
  }
}
