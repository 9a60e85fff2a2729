// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "bindings.h"
#include "core/duration.h"
#include "core/require.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::python {
namespace {

double parse_duration(const std::string& text) {
  const auto duration = duration_from(text);
  require(duration.has_value(), "text", kDurations, "'" + text + "'");
  return std::chrono::duration<double>(*duration).count();
}

// Returns the calling thread's bytes by kind, and the peak of their total.
std::map<std::string, std::uint64_t> memory_in_use() {
  const MemoryUse use = memory_use();
  return {{"parameters", use.now_of(MemoryKind::kParameters)},
          {"gradients", use.now_of(MemoryKind::kGradients)},
          {"states", use.now_of(MemoryKind::kStates)},
          {"buckets", use.now_of(MemoryKind::kBuckets)},
          {"other", use.now_of(MemoryKind::kOther)},
          {"peak", use.peak()}};
}

}  // namespace

void bind_machine(nb::module_& module) {
  module.def("cpu_target", &kernels::cpu_target);
  module.def("processor", &kernels::processor_name);
  module.def("memory_use", &memory_in_use);
  nb::enum_<MemoryKind>(module, "MemoryKind")
      .value("parameters", MemoryKind::kParameters)
      .value("gradients", MemoryKind::kGradients);
  nb::class_<MemoryNote>(module, "MemoryNote")
      .def(nb::init<MemoryKind, std::size_t>(), "kind"_a, "bytes"_a);
  module.def("parse_duration", &parse_duration, "text"_a);
  nb::enum_<DType>(module, "DType")
      .value("float32", DType::kFloat32)
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16)
      .value("float64", DType::kFloat64)
      .value("int32", DType::kInt32)
      .value("int64", DType::kInt64)
      .value("uint8", DType::kUInt8);
}

}  // namespace thinwire::python
