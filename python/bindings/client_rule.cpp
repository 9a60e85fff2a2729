// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "optim/checks.h"
#include "optim/saved_state.h"
#include "support/arrays.h"
#include "support/errors.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::python {
namespace {

constexpr const char* kState = "client_state";
constexpr const char* kRates = "learning_rates";

nb::object memory(View values) {
  return memoryview_of(values.data(), values.bytes());
}

class ClientRule final : public optim::UpdateRule {
 public:
  ClientRule(ParameterLayout layout, std::shared_ptr<Reference> client)
      : layout_(std::move(layout)), client_(std::move(client)) {
    with_gil(ErrorCode::kInvalidArgument, [&] {
      const nb::object& object = client_->get();
      name_ = nb::cast<std::string>(object.attr("name"));
      description_ = nb::cast<std::string>(object.attr("description"));
      rates_ = nb::cast<std::vector<double>>(object.attr("learning_rates"));
    });
    require(rates_.size() == layout_.num_groups(), "learning_rates",
            fmt::format("of {} groups", layout_.num_groups()), rates_.size());
  }

  [[nodiscard]] std::string_view name() const noexcept override {
    return name_;
  }
  [[nodiscard]] const ParameterLayout& layout() const noexcept override {
    return layout_;
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("{} learning_rates=[{}]\n{}\n", name_,
                       fmt::join(rates_, ", "), description_);
  }

  [[nodiscard]] bool takes_parts() const noexcept override { return false; }
  void apply_part(std::int64_t /*step*/, Range part,
                  const optim::UpdateArrays& arrays,
                  ThreadPool& /*pool*/) override {
    optim::require_part(part, arrays, layout_);
    require(part.size == layout_.size(), "part", "all of the layout",
            part.size);
    if (grads_.empty()) grads_ = Buffer::of<float>(layout_.size());
    kernels::convert(arrays.grads, grads_.view());
    for (float& value : grads_.as<float>()) value *= arrays.grad_scale;
    with_gil(ErrorCode::kFailedPrecondition, [&] {
      static_cast<void>(call_python(
          client_->get().attr("step"),
          nb::make_tuple(memory(arrays.params), memory(grads_.view()))));
    });
    if (!arrays.low_precision.empty())
      kernels::convert(arrays.params, arrays.low_precision);
  }

  [[nodiscard]] std::size_t num_groups() const noexcept override {
    return rates_.size();
  }
  void set_learning_rate(std::size_t group, double learning_rate) override {
    optim::require_group(group, num_groups());
    optim::require_learning_rate(learning_rate);
    rates_[group] = learning_rate;
  }
  [[nodiscard]] double learning_rate(std::size_t group) const override {
    optim::require_group(group, num_groups());
    return rates_[group];
  }
  void set_weight_decay(std::size_t /*group*/, double /*decay*/) override {
    throw Error(ErrorCode::kInvalidArgument,
                "weight_decay: it is the client optimizer's own");
  }
  [[nodiscard]] double weight_decay(std::size_t /*group*/) const override {
    return 0;
  }

  [[nodiscard]] View state(std::string_view key) override {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("key: the state of {} is its own, got '{}'", name_, key));
  }
  void add_to(optim::State& state, optim::Sharing /*sharing*/,
              const std::vector<Range>& /*elements*/) const override {
    state.add_groups(kRates, rates_);
    Buffer packed = with_gil(ErrorCode::kFailedPrecondition, [&] {
      const auto bytes = nb::cast<nb::bytes>(
          call_python(client_->get().attr("pack"), nb::make_tuple()));
      Buffer copy(bytes.size(), DType::kUInt8);
      std::memcpy(copy.data(), bytes.c_str(), bytes.size());
      return copy;
    });
    state.add_free(kState, packed.view());
    state.arrays.back().read = optim::StateArray::from(std::move(packed));
  }
  [[nodiscard]] optim::Adoption adopt(StateDict& state) override {
    auto rates = optim::saved_values<double>(state, kRates, num_groups(),
                                             optim::Sign::kNotNegative);
    const Buffer packed = state.take(kState);
    auto loaded = with_gil(ErrorCode::kCorruptCheckpoint, [&] {
      return std::make_shared<Reference>(
          call_python(client_->get().attr("check"),
                      nb::make_tuple(nb::bytes(packed.data(), packed.size()))));
    });
    return [this, loaded = std::move(loaded), rates = std::move(rates)] {
      rates_ = rates;
      with_gil(ErrorCode::kFailedPrecondition, [&] {
        static_cast<void>(call_python(client_->get().attr("take"),
                                      nb::make_tuple(loaded->get())));
      });
    };
  }

 private:
  ParameterLayout layout_;
  std::shared_ptr<Reference> client_;
  std::string name_;
  std::string description_;
  std::vector<double> rates_;
  Buffer grads_;  // fp32 gradients of the step
};

}  // namespace

optim::MakeRule make_client_rule(nb::object client) {
  return [kept = std::make_shared<Reference>(std::move(client))](
             const ParameterLayout& layout) {
    return std::make_unique<ClientRule>(layout, kept);
  };
}

}  // namespace thinwire::python
