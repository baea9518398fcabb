// The arrays of one step, as Python laid them out (engines/embedded/batch.py): one row a seq.
//
// The very memory that Python holds, not a copy: what is checked is what attention reads, and what
// somebody overwrites is seen. Pages, slots and rows in it are numbers that nobody has checked yet:
// never an index before they are known to lie inside.
#pragma once

#include <cstdint>

namespace bulkhead {

struct StepArrays {
  int64_t num_tokens, num_rows, max_pages, num_copies;
  const int64_t* input_ids;       // [tokens]
  const int64_t* positions;       // [tokens]
  const int64_t* token_rows;      // [tokens] the row that each token belongs to
  const int64_t* slot_mapping;    // [tokens] page * page_size + offset: where its KV is written
  const int64_t* block_tables;    // [rows, max_pages]
  const uint64_t* expected_tags;  // [rows, max_pages]
  const int64_t* row_domains;     // [rows]
  const int64_t* row_owners;      // [rows]
  const int64_t* num_public;      // [rows] leading pages that are to be of `public_domains` instead
  const int64_t* public_domains;  // [rows]
  const int64_t* context_lens;    // [rows]
  const int64_t* query_lens;      // [rows]
  const int64_t* num_pages;       // [rows] leading columns of the tables that are read
  const int64_t* copy_rows;       // [copies]
  const int64_t* copy_sources;    // [copies]
  const uint64_t* copy_tags;      // [copies]
  const int64_t* copy_domains;    // [copies]
};

}  // namespace bulkhead
