// Into what parts a context and a row's queries are cut, and the memory to work in.
//
// A context is cut from position 0, whoever looks at it: segments of PIECES pieces, and pieces of
// whole pages, 128 tokens where pages fill that. Scores of a piece are weighed at once. Queries are
// taken in tiles, which share what is done to a piece; how they are cut changes no sum.
#pragma once

#include "attention.h"

namespace bulkhead {
namespace {

constexpr int PIECE_TOKENS = 128, PIECES = 2;  // of a segment
constexpr int PIECE_PAGES = PIECE_TOKENS / 2;  // at most, since a page has two tokens or more
constexpr int TILE_ROWS = 64;                  // a query of one head is a row of a tile

inline size_t rounded(size_t count) { return (count + 15) / 16 * 16; }

// Rows that there is room for: kernels may take more than 16 by blocks of 16, the last one too.
inline size_t padded(int rows) { return rows > 16 ? rounded(rows) : rows; }

struct Sizes {
  int head_dim, page_size;
  int group;      // heads that share a kv head
  int rows;       // of a tile at most
  int pages;      // of a piece
  int tokens;     // of a piece
  int stride;     // floats from one row's scores to the next's

  Sizes(const KvPool& pool, int num_heads)
      : head_dim(pool.head_dim),
        page_size(pool.page_size),
        group(num_heads / pool.num_kv_heads),
        rows(group > TILE_ROWS ? group : TILE_ROWS / group * group),
        pages(page_size > PIECE_TOKENS ? 1 : PIECE_TOKENS / page_size),
        tokens(pages * page_size),
        stride(static_cast<int>(rounded(tokens))) {}

  size_t sums_floats(int num_rows) const {
    return rounded(padded(num_rows) * head_dim) + 2 * rounded(num_rows);
  }
};

// What some rows found so far, weights relative to the highest score so far.
struct Sums {
  float* mixed;    // [rows, head_dim] the weighted sum of values
  float* highest;  // [rows] score, as a power of 2
  float* weight;   // [rows] the sum of all weights

  Sums(const Sizes& sizes, int num_rows, float* floats)
      : mixed(floats),
        highest(mixed + rounded(padded(num_rows) * sizes.head_dim)),
        weight(highest + rounded(num_rows)) {}
};

// The parts of `scratch`, each aligned to 64 bytes.
struct Room {
  float* queries;   // [rows, head_dim] in the kernels' own numbers, which are no wider than these
  float* scores;    // [rows, stride], and then the weights
  float* k;         // a piece's K and V, where the kernels want them in other numbers
  float* v;
  Sums segment, context;
  int* seen;        // [rows] tokens of the piece
  std::byte* end;

  Room(const Sizes& sizes, std::byte* scratch)
      : queries(reinterpret_cast<float*>(scratch)),
        scores(queries + padded(sizes.rows) * sizes.head_dim),
        k(scores + padded(sizes.rows) * sizes.stride),
        v(k + static_cast<size_t>(sizes.stride) * sizes.head_dim),
        segment(sizes, sizes.rows, v + static_cast<size_t>(sizes.stride) * sizes.head_dim),
        context(sizes, sizes.rows, segment.mixed + sizes.sums_floats(sizes.rows)),
        seen(reinterpret_cast<int*>(context.mixed + sizes.sums_floats(sizes.rows))),
        end(reinterpret_cast<std::byte*>(seen + rounded(sizes.rows))) {}
};

}  // namespace
}  // namespace bulkhead
