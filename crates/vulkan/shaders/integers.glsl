// Exact sums of three planes of digits become a number.
void put_sums(uint row, uint column, int low_, int middle, int high_) {
  float all = fused(65025.0, float(high_), fused(255.0, float(middle), float(low_)));
  put(row, column, mul(mul(all, row_scale[row]), column_scale[column]));
}
// the planes that any of four rows has
uint planes_of(uint row) {
  uint most = 1u;
  for (uint r = 0u; r < 4u; r++) if (row + r < rows) most = max(most, used[row + r]);
  return most;
}
