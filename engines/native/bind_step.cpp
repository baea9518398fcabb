#include <stdexcept>

#include "bind.h"
#include "step_view.h"

namespace nb = nanobind;

namespace bulkhead {

StepView::StepView(nb::handle input_ids, nb::handle positions, nb::handle token_rows,
                   nb::handle slot_mapping, nb::handle block_tables, nb::handle expected_tags,
                   nb::handle row_domains, nb::handle row_owners, nb::handle num_public,
                   nb::handle public_domains, nb::handle context_lens, nb::handle query_lens,
                   nb::handle num_pages, nb::handle copy_rows, nb::handle copy_sources,
                   nb::handle copy_tags, nb::handle copy_domains)
    : input_ids_(input_ids, "input_ids"),
      positions_(positions, "positions"),
      token_rows_(token_rows, "token_rows"),
      slot_mapping_(slot_mapping, "slot_mapping"),
      block_tables_(block_tables, "block_tables"),
      expected_tags_(expected_tags, "expected_tags"),
      row_domains_(row_domains, "row_domains"),
      row_owners_(row_owners, "row_owners"),
      num_public_(num_public, "num_public"),
      public_domains_(public_domains, "public_domains"),
      context_lens_(context_lens, "context_lens"),
      query_lens_(query_lens, "query_lens"),
      num_pages_(num_pages, "num_pages"),
      copy_rows_(copy_rows, "copy_rows"),
      copy_sources_(copy_sources, "copy_sources"),
      copy_tags_(copy_tags, "copy_tags"),
      copy_domains_(copy_domains, "copy_domains") {
  if (block_tables_.dimensions() != 2)
    throw std::invalid_argument("block_tables must have two dimensions: rows and pages");
  const int64_t tokens = input_ids_.size(), copies = copy_rows_.size();
  const int64_t rows = block_tables_.length(0), pages = block_tables_.length(1);
  for (const Ints* array : {&input_ids_, &positions_, &token_rows_, &slot_mapping_})
    array->must_have({tokens});
  expected_tags_.must_have({rows, pages});
  for (const Ints* array : {&row_domains_, &row_owners_, &num_public_, &public_domains_,
                            &context_lens_, &query_lens_, &num_pages_})
    array->must_have({rows});
  for (const Ints* array : {&copy_rows_, &copy_sources_, &copy_domains_})
    array->must_have({copies});
  copy_tags_.must_have({copies});
  arrays_ = {tokens,
             rows,
             pages,
             copies,
             input_ids_.data(),
             positions_.data(),
             token_rows_.data(),
             slot_mapping_.data(),
             block_tables_.data(),
             expected_tags_.data(),
             row_domains_.data(),
             row_owners_.data(),
             num_public_.data(),
             public_domains_.data(),
             context_lens_.data(),
             query_lens_.data(),
             num_pages_.data(),
             copy_rows_.data(),
             copy_sources_.data(),
             copy_tags_.data(),
             copy_domains_.data()};
}

void bind_step(nb::module_& module) {
  using H = nb::handle;
  nb::class_<StepView>(module, "StepView")
      .def(nb::init<H, H, H, H, H, H, H, H, H, H, H, H, H, H, H, H, H>());
}

}  // namespace bulkhead
