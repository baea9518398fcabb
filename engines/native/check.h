// The tag check and the write guard over a whole step, against the pool's own tags: the twin of
// engines/kernels/tag_check.py.
//
// Says whether all is as it was given, and how many pages that is known of. What exactly is wrong,
// which is rare, Python finds out and puts into words.
#pragma once

#include <cstdint>

#include "cpu.h"
#include "step_arrays.h"

namespace bulkhead {

// A tag is domain:16 | generation:48. Page 0 is the null page, which nobody reads or writes.
inline constexpr int GENERATION_BITS = 48;

// What the pool knows of its pages, by their numbers.
struct Ledger {
  int64_t num_pages;  // at least 1
  const uint64_t* tags;
  const uint8_t* states;
  const int32_t* refs;
  const int64_t* owners;
  uint8_t active_state;  // of a page that its owner writes
  int64_t page_size;     // tokens
};

namespace {

// 1..num_pages-1: without a sign what lies below lies far above. In an unnamed namespace, for files
// compiled for different CPUs.
[[gnu::always_inline]] inline bool is_page(const Ledger& ledger, int64_t page) {
  return static_cast<uint64_t>(page) - 1 < static_cast<uint64_t>(ledger.num_pages) - 1;
}

}  // namespace

// Pages of one domain: all of them in the pool, under the tags expected, and of that domain.
using RightPages = bool (*)(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                            int64_t count, int64_t domain);

bool right_pages(const Ledger& ledger, const int64_t* pages, const uint64_t* expected, int64_t count,
                 int64_t domain);
bool right_pages_avx2(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                      int64_t count, int64_t domain);
bool right_pages_avx512(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                        int64_t count, int64_t domain);
RightPages right_pages_for(Isa isa);

// All pages that a step reads, copied ones too.
bool right_reads(const Ledger& ledger, const StepArrays& step, RightPages right_pages);

// All slots that a step writes: in a page that is active, held once, owned by the token's row, and
// that has the tag which the row expects at the token's position.
bool right_writes(const Ledger& ledger, const StepArrays& step);

// Places of the tables that the rows read, and pages copied: those that right_reads looks at.
int64_t num_read(const StepArrays& step);

}  // namespace bulkhead
