// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/require.h"
#include "deepspeed/compressed_all_reduce.h"
#include "optim/low_bit/model.h"
#include "thinwire/deepspeed/optimizers.h"
#include "thinwire/optim/compression_options.h"
#include "thinwire/optim/freeze_options.h"

namespace thinwire::deepspeed {

/// Groups whose masks take effect at once, because DeepSpeed's ranks do not
/// agree on anything.
class Groups final : public optim::MaskedGroups {
 public:
  explicit Groups(optim::LowBitModel& model)
      : MaskedGroups(model.adam.layout(), model.masks, model.parts()),
        masks_(model.masks) {}

  void set_exp_avg_mask(std::size_t group,
                        std::span<const float> mask) override {
    MaskedGroups::set_exp_avg_mask(group, mask);
    masks_.follow();
  }

 private:
  optim::Masks& masks_;
};

/// Common parts of DeepSpeed's low-bit optimizers.
struct LowBitOptimizer::Impl {
  Impl(comm::Communicator& comm, const ParameterLayout& layout,
       optim::LowBitSettings settings)
      : model(flat(comm), layout, std::move(settings)),
        units(model.layout.units),
        groups(model) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  optim::LowBitModel model;
  std::vector<Range> units;                        // ranges with one scale each
  std::unique_ptr<CompressedAllReduce> exchange_;  // see exchange()
  Groups groups;
  std::int64_t steps = 0;
  bool initialized = false;  // the first step() has been taken

  // ---- parts of each optimizer
  /// `averaged` is whether a wrapper has already averaged the gradients.
  virtual void take_step(const optim::StepInput& in, bool averaged,
                         optim::StepMeter& step) = 0;
  /// Returns the progress without the number of steps.
  [[nodiscard]] virtual optim::Progress progress() const = 0;
  virtual void add_own(optim::State& state) const = 0;
  /// Adds the values of this optimizer that a DeepSpeed file lacks.
  virtual void complete(StateDict& state) const = 0;
  /// Returns whether the options ask for the stage that the state is in.
  [[nodiscard]] virtual bool is_in_stage_of(const StateDict& state) const = 0;
  /// If `goes_on`, the run continues as if it had never stopped. Otherwise it
  /// restarts as DeepSpeed does.
  [[nodiscard]] virtual optim::Adoption adopt_own(StateDict& state,
                                                  bool goes_on) = 0;

  // ---- pieces of a step
  [[nodiscard]] optim::Adam& adam() { return model.adam; }
  [[nodiscard]] optim::StepReport step(const optim::StepInput& in,
                                       bool averaged);
  /// Sums the gradients over the ranks, unless they are averaged already.
  /// Returns the factor that turns the sum into the mean.
  [[nodiscard]] float average(const optim::StepInput& in, bool averaged,
                              optim::StepMeter& step);
  void sum(View values, optim::StepMeter& step);
  /// Creates the exchange on first use.
  [[nodiscard]] CompressedAllReduce& exchange();
  /// Multiplies values[i] by mask[i]. `values` is the whole flat array.
  void multiply_by_mask(std::span<float> values, Range range) const;
  /// Computes d = sqrt(v) + eps.
  void make_denominator(std::span<const optim::GroupRange> which,
                        Buffer& denominator);
  void clear_residuals() {
    if (exchange_) exchange_->clear_errors();
  }

  [[nodiscard]] optim::State state() const;
  /// Adopts a state, or a DeepSpeed file, whose `optimizer` is "adam" or
  /// "lamb".
  [[nodiscard]] Adoption adopt(StateDict state);

 private:
  /// Throws Error(kInvalidArgument) if the exchange would be hierarchical.
  [[nodiscard]] static comm::Communicator& flat(comm::Communicator& comm);
  [[nodiscard]] bool is_file_of_reference(const StateDict& state) const;
  void verify(View params);
  [[nodiscard]] optim::Adoption adopt_residuals(StateDict& state, bool goes_on);
};

/// Returns the freeze step or a default, because DeepSpeed does not know a
/// run's length.
[[nodiscard]] inline std::int64_t planned(const optim::FreezeOptions& freeze) {
  return freeze.step.value_or(optim::kDefaultFreezeStep);
}

/// Returns the settings of an optimizer without those that DeepSpeed ignores.
template <class Options>
[[nodiscard]] optim::LowBitSettings settings_of(std::string name,
                                                std::string own_options,
                                                const Options& options) {
  optim::LowBitSettings settings =
      optim::low_bit_settings(std::move(name), std::move(own_options), options);
  settings.adam.bias_correction = false;
  settings.adam.epsilon_inside_sqrt = false;
  return settings;
}

// ---- checks, which throw Error(kInvalidArgument) with the field, its range
// and its value
inline void require_exact_warmup(std::optional<int> warmup_bits) {
  require(warmup_bits.value_or(0) == 0, "warmup_bits",
          "0 with deepspeed semantics, whose exact steps average exactly",
          warmup_bits.value_or(0));
}

inline void require_fp32_residuals(
    const optim::CompressionOptions& compression) {
  const DType dtype = compression.residual_dtype.value_or(DType::kFloat32);
  require(dtype == DType::kFloat32, "residual_dtype",
          "float32 with deepspeed semantics", to_string(dtype));
}

/// Returns the freeze step for the checks of Thinwire's own class, which
/// require at least 1. Here it may be 0, because the initialization step
/// counts.
[[nodiscard]] inline std::int64_t at_least_one(
    std::optional<std::int64_t> freeze_step, const char* name) {
  const std::int64_t named = freeze_step.value_or(1);
  require(named >= 0, name, ">= 0", named);
  return std::max<std::int64_t>(1, named);
}

/// Checks the options of an optimizer that freezes its variance.
template <class Options>
void validate_freezing(const Options& options, const ParameterLayout& layout) {
  require(options.freeze.step.value_or(1) != optim::kAutoFreeze, "semantics",
          "corrected with an automatic freeze", "deepspeed");
  require_exact_warmup(options.freeze.warmup_bits);
  Options rest = options;
  rest.freeze.step = at_least_one(options.freeze.step, "freeze_step");
  require_fp32_residuals(options.compression);
  rest.validate(layout);
}

}  // namespace thinwire::deepspeed
