// The check of pages, a few tags at once: as many as the file that includes this is compiled for.
//
// All is in an unnamed namespace: what is compiled for one CPU must never be linked where another
// will call it.
#pragma once

#include <cstring>
#include <utility>

#include "check.h"

namespace bulkhead {
namespace {

#if defined(__AVX512F__)
constexpr int64_t TAGS = 8;
#else
constexpr int64_t TAGS = 4;
#endif

typedef uint64_t Tags __attribute__((vector_size(TAGS * 8)));

constexpr int64_t AHEAD = 64;  // pages; found by trying, with cold caches

Tags load(const uint64_t* from) {
  Tags tags;
  std::memcpy(&tags, from, sizeof tags);
  return tags;
}

// The tags of pages; false if one isn't in the pool. Each is read once, so that it is what it was
// found to be, and its tag is loaded by itself: a gather takes longer than as many loads do.
template <class... Page>
bool take(const Ledger& ledger, Tags& tags, Page... page) {
  if (!(is_page(ledger, page) & ...)) return false;
  tags = Tags{ledger.tags[page]...};
  return true;
}

template <size_t... I>
bool take_each(const Ledger& ledger, Tags& tags, const int64_t* pages, std::index_sequence<I...>) {
  return take(ledger, tags, pages[I]...);
}

// After a forward pass nothing of this is in a cache. Tables may be fetched past their end: a
// prefetch of what isn't there is none.
void fetch_ahead(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                 int64_t left) {
  __builtin_prefetch(pages + AHEAD);
  __builtin_prefetch(expected + AHEAD);
  if (left > AHEAD && is_page(ledger, pages[AHEAD])) __builtin_prefetch(ledger.tags + pages[AHEAD]);
}

bool right_pages_lanes(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                       int64_t count, int64_t domain) {
  Tags tags, differences{};
  int64_t i = 0;
  for (; i + TAGS <= count; i += TAGS) {
    fetch_ahead(ledger, pages + i, expected + i, count - i);
    if (!take_each(ledger, tags, pages + i, std::make_index_sequence<TAGS>())) return false;
    differences |= tags ^ load(expected + i);
    differences |= (tags >> GENERATION_BITS) ^ static_cast<uint64_t>(domain);
  }
  uint64_t found = 0;
  for (int64_t lane = 0; lane < TAGS; ++lane) found |= differences[lane];
  return !found && right_pages(ledger, pages + i, expected + i, count - i, domain);
}

}  // namespace
}  // namespace bulkhead
