// One step's arrays as C++ sees them: borrowed from numpy once a step, and handed to each call that
// needs them. Shapes and types are checked here; what the numbers say isn't.
#pragma once

#include <nanobind/nanobind.h>

#include "borrowed.h"
#include "step_arrays.h"

namespace bulkhead {

class StepView {
 public:
  StepView(nanobind::handle input_ids, nanobind::handle positions, nanobind::handle token_rows,
           nanobind::handle slot_mapping, nanobind::handle block_tables,
           nanobind::handle expected_tags, nanobind::handle row_domains,
           nanobind::handle row_owners, nanobind::handle num_public,
           nanobind::handle public_domains, nanobind::handle context_lens,
           nanobind::handle query_lens, nanobind::handle num_pages, nanobind::handle copy_rows,
           nanobind::handle copy_sources, nanobind::handle copy_tags,
           nanobind::handle copy_domains);

  const StepArrays& arrays() const { return arrays_; }

 private:
  using Ints = Borrowed<int64_t>;
  using Tags = Borrowed<uint64_t>;

  Ints input_ids_, positions_, token_rows_, slot_mapping_;
  Ints block_tables_;
  Tags expected_tags_;
  Ints row_domains_, row_owners_, num_public_, public_domains_;
  Ints context_lens_, query_lens_, num_pages_;
  Ints copy_rows_, copy_sources_;
  Tags copy_tags_;
  Ints copy_domains_;
  StepArrays arrays_;
};

}  // namespace bulkhead
