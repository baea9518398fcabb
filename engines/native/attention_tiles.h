// The course of attention, the same for each instruction set: tiles of queries over the pieces of a
// context, weights relative to the highest score so far, and segments merged in their order.
//
// `Kernel` computes: prepare, load_query, score, weigh, rescale, mix, blend, write.
#pragma once

#include <cmath>

#include "attention_layout.h"
#include "attention_sizes.h"
#include "attention_store.h"
#include "lanes.h"

namespace bulkhead {
namespace {

// Some whole pages of a context, for one head.
struct Piece {
  int num_tokens;  // that some query of the tile sees
  int num_pages;   // that hold them
  const std::byte* k[PIECE_PAGES];
  const std::byte* v[PIECE_PAGES];
  const std::byte* soon[PIECE_PAGES];  // K of the pages that follow, or any address
};

// A tile of a row's queries: rows are [query, head].
struct Tile {
  const KvPool& pool;
  int layer, kv_head;
  const AttentionRow& row;
  Sizes sizes;
  Room room;
  int position;  // of its first query
  int num_queries;

  int num_rows() const { return num_queries * sizes.group; }
  int last_position() const { return position + num_queries - 1; }
};

// One head of the page that holds the token at `position`; `side`: 0 is K, 1 is V.
const std::byte* head_at(const Tile& tile, int position, int side) {
  const int64_t page = tile.row.pages[position / tile.sizes.page_size];
  return tile.pool.head(page, tile.layer, side, tile.kv_head);
}

Piece piece_at(const Tile& tile, int start) {
  Piece piece;
  const Sizes& sizes = tile.sizes;
  const int left = tile.last_position() + 1 - start;
  piece.num_tokens = left < sizes.tokens ? left : sizes.tokens;
  piece.num_pages = (piece.num_tokens + sizes.page_size - 1) / sizes.page_size;
  for (int i = 0; i < piece.num_pages; ++i) {
    const int position = start + i * sizes.page_size, later = position + sizes.tokens;
    piece.k[i] = head_at(tile, position, 0);
    piece.v[i] = head_at(tile, position, 1);
    piece.soon[i] = later <= tile.last_position() ? head_at(tile, later, 0) : piece.k[i];
  }
  return piece;
}

// The first row whose query sees the token at `start`.
int first_row(const Tile& tile, int start) {
  return start > tile.position ? (start - tile.position) * tile.sizes.group : 0;
}

void look(const Tile& tile, int start) {
  for (int i = 0; i < tile.num_rows(); ++i) {
    const int seen = tile.position + i / tile.sizes.group + 1 - start;
    tile.room.seen[i] = seen < tile.sizes.tokens ? seen : tile.sizes.tokens;
  }
}

void clear(const Sizes& sizes, int num_rows, const Sums& sums) {
  std::memset(sums.mixed, 0, sizeof(float) * num_rows * sizes.head_dim);
  std::memset(sums.weight, 0, sizeof(float) * num_rows);
  for (int i = 0; i < num_rows; ++i) sums.highest[i] = -INFINITY;
}

// What the tile finds in one segment, into `sums`.
template <class Kernel>
void sum_segment(const Tile& tile, int segment, const Sums& sums) {
  clear(tile.sizes, tile.num_rows(), sums);
  // Scores count in powers of 2, since those cost least.
  const float factor = k_scale(tile.pool, tile.layer) * 1.44269504f /
                       std::sqrt(static_cast<float>(tile.sizes.head_dim));
  for (int i = 0; i < PIECES; ++i) {
    const int start = (segment * PIECES + i) * tile.sizes.tokens;
    if (start > tile.last_position()) break;
    const int first = first_row(tile, start);
    const Piece piece = piece_at(tile, start);
    look(tile, start);
    Kernel::score(tile, piece, first);
    for (int row = first; row < tile.num_rows(); ++row) {
      const float rescale = Kernel::weigh(tile, row, factor, sums);
      if (rescale != 1)
        Kernel::rescale(sums.mixed + row * tile.sizes.head_dim, rescale, tile.sizes.head_dim);
    }
    Kernel::mix(tile, piece, first, sums);
  }
}

// Adds what rows first..last-1 found in a further segment to what they had found before.
template <class Kernel>
void merge_rows(const Sizes& sizes, int first, int last, const Sums& further, const Sums& sums) {
  for (int row = first; row < last; ++row) {
    const float a = sums.highest[row], b = further.highest[row], highest = a < b ? b : a;
    const float old = exp2(a - highest), added = exp2(b - highest);
    const ptrdiff_t at = static_cast<ptrdiff_t>(row) * sizes.head_dim;
    Kernel::blend(sums.mixed + at, old, further.mixed + at, added, sizes.head_dim);
    sums.weight[row] = sums.weight[row] * old + further.weight[row] * added;
    sums.highest[row] = highest;
  }
}

template <class Kernel>
void write_rows(const KvPool& pool, int layer, const Sizes& sizes, const Sums& sums, int query,
                float* out) {
  for (int head = 0; head < sizes.group; ++head) {
    const int row = query * sizes.group + head;
    Kernel::write(pool, sums.mixed + static_cast<ptrdiff_t>(row) * sizes.head_dim,
                  v_scale(pool, layer) / sums.weight[row],
                  out + static_cast<ptrdiff_t>(head) * sizes.head_dim);
  }
}

template <class Kernel>
void load_queries(const Tile& tile, const float* q, ptrdiff_t ld) {
  for (int row = 0; row < tile.num_rows(); ++row) {
    const int query = row / tile.sizes.group, head = row % tile.sizes.group;
    const ptrdiff_t at = static_cast<ptrdiff_t>(head) * tile.sizes.head_dim;
    Kernel::load_query(tile, row, q + query * ld + at);
  }
}

template <class Kernel>
void attend_tile(const Tile& tile, const float* q, ptrdiff_t ld, float* out, ptrdiff_t out_ld) {
  Kernel::prepare(tile, piece_at(tile, 0));
  load_queries<Kernel>(tile, q, ld);
  const int tokens = PIECES * tile.sizes.tokens;
  for (int segment = 0; segment * tokens <= tile.last_position(); ++segment) {
    const Sums& found = segment == 0 ? tile.room.context : tile.room.segment;
    sum_segment<Kernel>(tile, segment, found);
    if (segment > 0)
      merge_rows<Kernel>(tile.sizes, first_row(tile, segment * tokens), tile.num_rows(), found,
                         tile.room.context);
  }
  for (int query = 0; query < tile.num_queries; ++query)
    write_rows<Kernel>(tile.pool, tile.layer, tile.sizes, tile.room.context, query,
                       out + query * out_ld);
}

template <class Kernel>
void attend(const KvPool& pool, int layer, int kv_head, const AttentionRow& row, int first,
            int last, const float* q, int num_heads, ptrdiff_t ld, float* out, ptrdiff_t out_ld,
            std::byte* scratch) {
  const Sizes sizes(pool, num_heads);
  const Room room(sizes, scratch);
  const int most = sizes.rows / sizes.group;
  const ptrdiff_t heads = static_cast<ptrdiff_t>(kv_head) * sizes.group * sizes.head_dim;
  for (int query = first; query < last; query += most) {
    const int position = row.context_len - row.query_len + query;
    const int num_queries = last - query < most ? last - query : most;
    const Tile tile{pool, layer, kv_head, row, sizes, room, position, num_queries};
    attend_tile<Kernel>(tile, q + query * ld + heads, ld, out + query * out_ld + heads, out_ld);
  }
}

template <class Kernel>
void attend_segment(const KvPool& pool, int layer, int kv_head, const AttentionRow& row, int query,
                    int segment, const float* q, int num_heads, float* partial,
                    std::byte* scratch) {
  const Sizes sizes(pool, num_heads);
  const int position = row.context_len - row.query_len + query;
  const Tile tile{pool, layer, kv_head, row, sizes, Room(sizes, scratch), position, 1};
  const int start = segment * PIECES * sizes.tokens;
  if (start <= position) Kernel::prepare(tile, piece_at(tile, start));
  load_queries<Kernel>(tile, q + static_cast<ptrdiff_t>(kv_head) * sizes.group * sizes.head_dim, 0);
  sum_segment<Kernel>(tile, segment, Sums(sizes, sizes.group, partial));
}

template <class Kernel>
void merge(const KvPool& pool, int layer, int kv_head, int segments, float* partials, int num_heads,
           float* out) {
  const Sizes sizes(pool, num_heads);
  const Sums context(sizes, sizes.group, partials);
  for (int segment = 1; segment < segments; ++segment) {
    float* partial = partials + segment * sizes.sums_floats(sizes.group);
    merge_rows<Kernel>(sizes, 0, sizes.group, Sums(sizes, sizes.group, partial), context);
  }
  write_rows<Kernel>(pool, layer, sizes, context, 0,
                     out + static_cast<ptrdiff_t>(kv_head) * sizes.group * sizes.head_dim);
}

template <class Kernel>
constexpr AttentionKernels kernels_of() {
  return {store, attend<Kernel>, attend_segment<Kernel>, merge<Kernel>, read_head};
}

}  // namespace
}  // namespace bulkhead
