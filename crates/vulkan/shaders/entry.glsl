// Where the numbers of a matrix are.
struct Addresses { uvec2 weights, scales, levels, bias; };
// An expert: both its matrices, the exponents of what they read if it is shifted, and a factor of its results.
struct Expert { Addresses at[2]; uvec2 shifts[2]; float factor; uint unused; };
// A head: its matrix, and the exponents of what that reads if it is shifted.
struct Head { Addresses at; uvec2 shifts; };
// Some rows of one expert or head.
struct Tile { Addresses at; uint first, count; };
// A row that goes to an expert: which, what it is multiplied by before, what its results are multiplied by and their
// weight, and the shifts of its expert.
struct Entry { uint row; float factor, of_results, weight; uvec2 shifts[2]; };
