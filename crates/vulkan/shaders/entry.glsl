// A row that goes to an expert: which, what it is multiplied by before, what its results are multiplied by and their
// weight, and where the exponents of what either product reads are, if it is shifted.
struct Entry { uint row; float factor, of_results, weight; uvec2 shifts[2]; };
