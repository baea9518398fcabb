#include "check.h"

#include <algorithm>

namespace bulkhead {
namespace {

// Differences are or-ed and asked about once: no branch waits for a tag to come out of memory, and
// how long a check takes doesn't depend on what it finds.
using Differences = uint64_t;

// The null page's tag stands in for what lies outside, which is a difference by itself.
Differences page_differs(const Ledger& ledger, int64_t page, uint64_t expected, uint64_t domain) {
  const bool inside = is_page(ledger, page);
  const uint64_t tag = ledger.tags[inside ? page : 0];
  return static_cast<Differences>(!inside) | (tag ^ expected) | ((tag >> GENERATION_BITS) ^ domain);
}

int64_t num_read_of(const StepArrays& step, int64_t row) {
  return std::clamp<int64_t>(step.num_pages[row], 0, step.max_pages);
}

// The leading pages of a row that are public, of those that it reads.
int64_t num_public_of(const StepArrays& step, int64_t row, int64_t num_read) {
  return std::clamp<int64_t>(step.num_public[row], 0, num_read);
}

bool right_row(const Ledger& ledger, const StepArrays& step, int64_t row, RightPages right_pages) {
  const int64_t* pages = step.block_tables + row * step.max_pages;
  const uint64_t* expected = step.expected_tags + row * step.max_pages;
  const int64_t count = num_read_of(step, row);
  const int64_t shared = num_public_of(step, row, count);
  return right_pages(ledger, pages, expected, shared, step.public_domains[row]) &&
         right_pages(ledger, pages + shared, expected + shared, count - shared,
                     step.row_domains[row]);
}

bool right_write(const Ledger& ledger, const StepArrays& step, int64_t token) {
  const int64_t row = step.token_rows[token];
  const int64_t position = step.positions[token], slot = step.slot_mapping[token];
  if (row < 0 || row >= step.num_rows || position < 0 || slot < 0) return false;
  const int64_t column = position / ledger.page_size, page = slot / ledger.page_size;
  if (column >= step.max_pages || !is_page(ledger, page)) return false;
  const bool is_public = column < step.num_public[row];
  const int64_t domain = is_public ? step.public_domains[row] : step.row_domains[row];
  const uint64_t expected = step.expected_tags[row * step.max_pages + column];
  return !page_differs(ledger, page, expected, domain) &&
         ledger.states[page] == ledger.active_state && ledger.refs[page] == 1 &&
         ledger.owners[page] == step.row_owners[row];
}

}  // namespace

bool right_pages(const Ledger& ledger, const int64_t* pages, const uint64_t* expected, int64_t count,
                 int64_t domain) {
  Differences found = 0;
  for (int64_t i = 0; i < count; ++i)
    found |= page_differs(ledger, pages[i], expected[i], static_cast<uint64_t>(domain));
  return found == 0;
}

RightPages right_pages_for(Isa isa) {
#ifdef BULKHEAD_X86
  if (isa >= Isa::avx512) return right_pages_avx512;
  if (isa == Isa::avx2) return right_pages_avx2;
#endif
  return right_pages;
}

bool right_reads(const Ledger& ledger, const StepArrays& step, RightPages right_pages) {
  bool right = true;
  for (int64_t row = 0; row < step.num_rows; ++row)
    right &= right_row(ledger, step, row, right_pages);
  for (int64_t copy = 0; copy < step.num_copies; ++copy)
    right &= right_pages(ledger, step.copy_sources + copy, step.copy_tags + copy, 1,
                         step.copy_domains[copy]);
  return right;
}

bool right_writes(const Ledger& ledger, const StepArrays& step) {
  bool right = true;
  for (int64_t token = 0; token < step.num_tokens; ++token)
    right &= right_write(ledger, step, token);
  return right;
}

int64_t num_read(const StepArrays& step) {
  int64_t number = step.num_copies;
  for (int64_t row = 0; row < step.num_rows; ++row) number += num_read_of(step, row);
  return number;
}

}  // namespace bulkhead
