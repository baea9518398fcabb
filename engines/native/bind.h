// What each part of the module shows to Python. One function a part, in bind_<part>.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace bulkhead {

void bind_attention(nanobind::module_& module);
void bind_cpu(nanobind::module_& module);
void bind_linear(nanobind::module_& module);
void bind_step(nanobind::module_& module);
void bind_check(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_rows(nanobind::module_& module);

}  // namespace bulkhead
