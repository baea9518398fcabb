#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind.h"
#include "cpu.h"

namespace bulkhead {

void bind_cpu(nanobind::module_& module) {
  module.def("isas", [] {
    std::vector<std::string> names;  // best first
    for (Isa isa : {Isa::amx, Isa::avx512, Isa::avx2, Isa::scalar})
      if (has_isa(isa)) names.emplace_back(name_of(isa));
    return names;
  });
}

}  // namespace bulkhead
