// The steps of attention that go row by row, in lanes: weights, and sums that are put together.
#pragma once

#include <cmath>

#include "attention_layout.h"
#include "attention_tiles.h"
#include "lanes.h"

namespace bulkhead {
namespace {

[[gnu::always_inline]] inline Floats as_floats(Words bits) {
  return __builtin_bit_cast(Floats, bits);
}

[[gnu::always_inline]] inline Words load_words(const std::byte* from, int n) {
  Words words{};
  std::memcpy(&words, from, n * sizeof(uint32_t));
  return words;
}

// Begins to bring to the core what will be read soon. It may be no address at all.
// To its second cache: the first one waits for far fewer lines at a time.
[[gnu::always_inline]] inline void fetch(const std::byte* soon) {
  __builtin_prefetch(soon, 0, 2);
}

inline void fetch_head(const KvPool& pool, const std::byte* head) {
  const size_t bytes = pool.head_bytes();
  for (size_t at = 0; at < bytes; at += 64) fetch(head + at);
}

// The numbers of two tokens, for LANES dims: number `at` and those that follow.
template <KvNumbers numbers>
[[gnu::always_inline]] inline Words load_pairs(const std::byte* page, ptrdiff_t at) {
  if constexpr (numbers == KvNumbers::bf16) {
    return load_words(page + at * 4, LANES);
  } else {
    typedef uint16_t Pairs __attribute__((vector_size(LANES * 2)));
    Pairs pairs;
    std::memcpy(&pairs, page + at * 2, sizeof pairs);
    return __builtin_convertvector(pairs, Words);
  }
}

// Calls body<ROWS>(row) for blocks of rows: MOST at a time, and fewer at the end.
template <int MOST, class Body>
void for_row_blocks(int first, int last, Body&& body) {
  int row = first;
  for (; row + MOST <= last; row += MOST) body.template operator()<MOST>(row);
  if constexpr (MOST > 1)
    if (row < last) for_row_blocks<MOST - 1>(row, last, body);
}

// The highest of the scores a row sees; NaN may be passed over.
float highest_score(const float* scores, int seen) {
  Floats top = all(-INFINITY);
  const int whole = seen / LANES * LANES;
  for (int i = 0; i < whole; i += LANES) {
    const Floats some = load(scores + i);
    top = some > top ? some : top;
  }
  float found = highest(top);
  for (int i = whole; i < seen; ++i) found = scores[i] > found ? scores[i] : found;
  return found;
}

// Takes note of a row's highest score in a piece, and of how much less what came before weighs now.
float raise(const Sums& sums, int row, float found) {
  const float before = sums.highest[row];
  if (!(found > before)) return 1;
  sums.highest[row] = found;
  return exp2(before - found);
}

struct Steps {
  static void prepare(const Tile&, const Piece&) {}

  // Makes weights of a row's scores and adds up their sum. What it found before is to be multiplied
  // by what this returns. A score that is NaN or +infinity makes the row's sum NaN.
  static float weigh(const Tile& tile, int row, float factor, const Sums& sums) {
    float* scores = tile.room.scores + row * tile.sizes.stride;
    const int seen = tile.room.seen[row];
    const float rescale = raise(sums, row, highest_score(scores, seen) * factor);
    const float highest = sums.highest[row];
    Floats weights{};
    for_lanes(seen, [&](int i, int n) {
      store(scores + i, exp2(fused(load(scores + i, n), all(factor), all(-highest))), n);
      weights += load(scores + i, n);
    });
    sums.weight[row] = sums.weight[row] * rescale + total(weights);
    return rescale;
  }

  static void rescale(float* mixed, float factor, int head_dim) {
    for (int i = 0; i < head_dim; i += LANES) store(mixed + i, load(mixed + i) * factor);
  }

  static void blend(float* mixed, float old, const float* further, float added, int head_dim) {
    for (int i = 0; i < head_dim; i += LANES)
      store(mixed + i, load(mixed + i) * old + load(further + i) * added);
  }

  static void write(const KvPool& pool, const float* mixed, float factor, float* out) {
    for (int i = 0; i < pool.head_dim; i += LANES) store(out + i, load(mixed + i) * factor);
  }
};

}  // namespace
}  // namespace bulkhead
