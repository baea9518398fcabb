#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "bind.h"
#include "borrowed.h"
#include "check.h"
#include "step_view.h"

namespace nb = nanobind;

namespace bulkhead {
namespace {

// The pool's own arrays, borrowed once: they live as long as the pool, and never move.
class PageCheck {
 public:
  PageCheck(nb::handle tags, nb::handle states, nb::handle refs, nb::handle owners, int page_size,
            int active_state, const std::string& isa)
      : tags_(tags, "tags"),
        states_(states, "states"),
        refs_(refs, "refs"),
        owners_(owners, "owners"),
        right_pages_(right_pages_for(isa.empty() ? best_isa() : isa_named(isa))) {
    const int64_t num_pages = tags_.size();
    if (num_pages < 1) throw std::invalid_argument("tags is empty: a pool has a null page at least");
    states_.must_have({num_pages});
    refs_.must_have({num_pages});
    owners_.must_have({num_pages});
    if (page_size < 1) throw std::invalid_argument("page_size must be 1 or more");
    ledger_ = {num_pages,    tags_.data(),   states_.data(),
               refs_.data(), owners_.data(), static_cast<uint8_t>(active_state), page_size};
  }

  // Keeps the GIL: it takes about a nanosecond a page, and whoever lets go of the GIL may wait
  // milliseconds for it.
  std::pair<int64_t, bool> look(const StepView& view, bool guard_writes) const {
    const StepArrays& step = view.arrays();
    const bool right = right_reads(ledger_, step, right_pages_) &&
                       (!guard_writes || right_writes(ledger_, step));
    return {num_read(step), right};
  }

 private:
  Borrowed<uint64_t> tags_;
  Borrowed<uint8_t> states_;
  Borrowed<int32_t> refs_;
  Borrowed<int64_t> owners_;
  RightPages right_pages_;
  Ledger ledger_;
};

}  // namespace

void bind_check(nb::module_& module) {
  nb::class_<PageCheck>(module, "PageCheck")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, int, int, const std::string&>(),
           nb::arg("tags"), nb::arg("states"), nb::arg("refs"), nb::arg("owners"),
           nb::arg("page_size"), nb::arg("active_state"), nb::arg("isa") = "")
      .def("look", &PageCheck::look, nb::arg("step"), nb::arg("guard_writes"));
}

}  // namespace bulkhead
