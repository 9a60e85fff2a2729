// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "core/duration.h"
#include "core/require.h"
#include "support/arrays.h"
#include "support/gil.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/engine/engine.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/processor.h"
#include "thinwire/optim/optimizer.h"

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

// name, shape, group
using Spec = std::tuple<std::string, std::vector<std::size_t>, std::size_t>;

void construct_layout(ParameterLayout* self, std::vector<Spec> parameters,
                      std::size_t num_groups) {
  std::vector<ParameterSpec> specs;
  specs.reserve(parameters.size());
  for (auto& [name, shape, group] : parameters)
    specs.push_back(
        {.name = std::move(name), .shape = std::move(shape), .group = group});
  new (self) ParameterLayout(ParameterLayout::of(std::move(specs), num_groups));
}

// Returns one member of every parameter.
template <auto kMember>
auto each(const ParameterLayout& layout) {
  using Value = std::remove_cvref_t<decltype(Parameter{}.*kMember)>;
  std::vector<Value> values;
  for (const Parameter& parameter : layout.parameters())
    values.push_back(parameter.*kMember);
  return values;
}

// level, text
using Line = std::pair<std::string, std::string>;

// Keeps lines until a caller takes them. Any thread may call a sink, which must
// not wait for another thread and therefore cannot take the GIL.
class Lines {
 public:
  void add(LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == kMost) {
      lines_.pop_front();
      ++dropped_;
    }
    lines_.emplace_back(to_string(level), text);
  }

  std::vector<Line> take() {
    const std::lock_guard lock(mutex_);
    std::vector<Line> all;
    if (dropped_ > 0)
      all.emplace_back(
          to_string(LogLevel::kWarning),
          std::to_string(dropped_) + " earlier lines of the log were dropped");
    all.insert(all.end(), lines_.begin(), lines_.end());
    lines_.clear();
    dropped_ = 0;
    return all;
  }

 private:
  static constexpr std::size_t kMost = 1000;

  std::mutex mutex_;
  std::deque<Line> lines_;
  std::size_t dropped_ = 0;
};

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

void bind_layout(nb::module_& module) {
  nb::class_<ParameterLayout>(module, "Layout")
      .def("__init__", &construct_layout, "parameters"_a, "num_groups"_a = 0)
      .def_prop_ro("size", &ParameterLayout::size)
      .def_prop_ro("num_groups", &ParameterLayout::num_groups)
      .def_prop_ro("offsets", &each<&Parameter::offset>)
      .def_prop_ro("sizes", &each<&Parameter::size>)
      .def_prop_ro("names", &each<&Parameter::name>)
      .def("describe", &ParameterLayout::describe)
      .def("hash", &ParameterLayout::hash);
  module.def(
      "checksum",
      [](nb::handle values) {
        const ConstArray array(values, "values");
        const WithoutGil released;
        return checksum(array.view());
      },
      "values"_a);
}

void bind_log(nb::module_& module) {
  // Never freed, because threads may log until the process ends.
  auto* const lines = new Lines;
  set_log_sink([lines](LogLevel level, std::string_view text) {
    lines->add(level, text);
  });
  module.def("take_log", [lines] { return lines->take(); });
}

void bind_reports(nb::module_& module) {
  using engine::EngineReport;
  using optim::StepReport;
  nb::class_<StepReport>(module, "StepReport")
      .def_ro("applied", &StepReport::applied)
      .def_ro("nonfinite_rank", &StepReport::nonfinite_rank)
      .def_prop_ro("phase",
                   [](const StepReport& report) {
                     return std::string(to_string(report.phase));
                   })
      .def_ro("grad_norm", &StepReport::grad_norm)
      .def_ro("grad_norm_is_estimate", &StepReport::grad_norm_is_estimate)
      .def_ro("clip_factor", &StepReport::clip_factor)
      .def_ro("drift", &StepReport::drift)
      .def_ro("rho", &StepReport::rho)
      .def_ro("loss_scale", &StepReport::loss_scale)
      .def_ro("bits", &StepReport::bits)
      .def_ro("low_rank", &StepReport::low_rank)
      .def_ro("masked", &StepReport::masked)
      .def_ro("heavy", &StepReport::heavy)
      .def_ro("revived", &StepReport::revived)
      .def_ro("bytes_sent", &StepReport::bytes_sent)
      .def_ro("collectives", &StepReport::collectives)
      .def_ro("messages", &StepReport::messages)
      .def_ro("bytes_between_hosts", &StepReport::bytes_between_hosts)
      .def_ro("residuals_cleared", &StepReport::residuals_cleared)
      .def_ro("seconds", &StepReport::seconds)
      .def_ro("exchange_seconds", &StepReport::exchange_seconds)
      .def_ro("comm_busy_seconds", &StepReport::comm_busy_seconds)
      .def_ro("gradients_equal", &StepReport::gradients_equal);
  nb::class_<EngineReport, StepReport>(module, "EngineReport")
      .def_ro("at_boundary", &EngineReport::at_boundary)
      .def_ro("steps", &EngineReport::steps)
      .def_ro("learning_rate", &EngineReport::learning_rate)
      .def_ro("backward_seconds", &EngineReport::backward_seconds)
      .def_ro("late_elements", &EngineReport::late_elements)
      .def_ro("waited_for", &EngineReport::waited_for);
}

}  // namespace thinwire::python
