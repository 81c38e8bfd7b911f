// Where the result of a product goes: `y = v`, or `y = y + v`; a row is `width` wide, of which these columns begin at `at_`.
void put(uint row, uint column, float v) {
  if (has_bias == 1u) v = add(v, bias[column]);
  uint o = row * width + at_ + column;
  y[o] = add_ == 1u ? add(y[o], v) : v;
}
