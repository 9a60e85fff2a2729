// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/block_denominators.h"
#include "optim/exact_average.h"
#include "optim/gradient_clipping.h"
#include "optim/late_elements.h"
#include "optim/low_bit_layout.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/low_bit_optimizer.h"
#include "thinwire/optim/semantics.h"

namespace thinwire::optim {

/// The options that every low-bit optimizer has.
struct LowBitSettings {
  std::string name;         ///< "onebit_adam": for messages and saved state.
  std::string own_options;  ///< One line of what only this optimizer has.
  AdamOptions adam;
  std::vector<LowBitGroup> groups;
  Semantics semantics = Semantics::kCorrected;
  compress::Scale scale = compress::Scale::kRms;
  DType residual_dtype = DType::kFloat32;
  double denom_floor = 0;
  /// A block is searched for outliers if its gradient's norm is above so many
  /// medians of its denominators, times outlier_bounds().
  double outlier_gate = 10;
  ExchangeOptions exchange;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate(const ParameterLayout& layout) const;
  /// What ranks compare before they first exchange.
  [[nodiscard]] std::string describe() const;
};

/// What is common to the low-bit optimizers; each adds its own arithmetic.
struct LowBitOptimizer::Impl {
  /// Applies what read() has checked and copied.
  using Commit = std::function<void()>;

  Impl(comm::Communicator& c, const ParameterLayout& layout,
       LowBitSettings settings);
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  comm::Communicator& comm;
  LowBitSettings settings;
  Policy policy;
  Adam adam;  // moments, groups and learning rates
  ThreadPool pool;
  LowBitLayout parts;
  ExactAverage exact_average;

  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  CalibratedNorm norm;
  bool verification_is_due = false;
  bool left_out_a_step = false;  // this rank alone, since the last exchange
  std::uint32_t number;          // of this object, see optimizer_number()

  std::unique_ptr<compress::CompressedAllReduce> exchange;  // made when needed
  compress::WireObserver* observer = nullptr;
  std::vector<std::uint8_t> participation;  // empty: every element takes part
  compress::ActiveMask active_mask;         // the same in bits
  LateElements late;
  bool late_ones_arrived = false;  // on some rank, in this step
  std::size_t num_masked = 0;      // elements that do not take part
  Buffer denominator;              // while the variance does not move
  BlockDenominators block_denominators;
  bool momentum_is_signs = false;  // mean_momentum(), not adam.exp_avg()

  // ---- what each optimizer adds
  virtual void take_step(const StepInput& in, StepMeter& meter,
                         StepReport& report) = 0;
  [[nodiscard]] virtual Phase phase() const = 0;
  /// Collective: makes parameters equal on all ranks.
  virtual void synchronize(View /*params*/) {}
  [[nodiscard]] virtual bool ranks_are_equal() const { return true; }
  /// The momentum of a block where it is kept as signs.
  [[nodiscard]] virtual kernels::Signs mean_momentum(std::size_t block) const;
  /// What gets a scale of its own with a scale per parameter.
  [[nodiscard]] virtual std::vector<Range> exchange_units() const {
    return parts.units;
  }
  /// Options of the exchange that differ from the settings.
  virtual void adjust(compress::CompressedAllReduceOptions& /*options*/) const {
  }
  [[nodiscard]] virtual std::string describe_schedule() const = 0;
  /// A late element has come to life, with denominator `d`.
  virtual void begin_variance(std::size_t /*element*/, float /*d*/) {}
  virtual void save_own(StateDict& state) const = 0;
  [[nodiscard]] virtual Commit read_own(const StateDict& state) = 0;

  // ---- pieces of a step
  [[nodiscard]] StepReport step(const StepInput& in);
  [[nodiscard]] bool compresses() const { return comm.size() > 1; }
  [[nodiscard]] compress::CompressedAllReduce& the_exchange();
  /// A gradient that is not finite skips this step.
  [[nodiscard]] bool skips(const StepInput& in) const {
    return policy.skips_nonfinite &&
           (settings.exchange.skip_nonfinite || in.skips_together);
  }
  /// The RMS of the ranks' gradient norms, or nothing if a gradient was not
  /// finite; the report says so then.
  [[nodiscard]] std::optional<double> agree_on_norms(const StepInput& in,
                                                     StepMeter& meter,
                                                     StepReport& report);
  /// Replaces the ranges of `values` by their sums over the ranks.
  void sum(View values, std::span<const GroupRange> which, StepMeter& meter);
  /// Sums the gradients. Returns what to multiply them by to get their clipped
  /// average, or nothing if a gradient was not finite; the report says so then.
  [[nodiscard]] std::optional<float> average_exactly(const StepInput& in,
                                                     StepMeter& meter,
                                                     StepReport& report);
  /// Before a compressed exchange: what to multiply this rank's gradients by,
  /// clipped by the estimated norm, or nothing if one was not finite; the
  /// report says so then.
  [[nodiscard]] std::optional<double> clip_by_estimate(const StepInput& in,
                                                       StepMeter& meter,
                                                       StepReport& report);
  /// Of the averaged gradient, from the RMS of the ranks' norms.
  [[nodiscard]] double estimated_norm(double rms_norm) const;
  [[nodiscard]] double clip(double grad_norm) const;
  /// Per group, for the step that `steps` counts.
  [[nodiscard]] std::vector<kernels::AdamCoefficients> coefficients(
      double grad_scale) const;

  // ---- momentum in few bits (low_bit_momentum.cpp)
  /// Averages the momentum and moves the parameters by it, over the
  /// denominator as it stands.
  void momentum_step(const StepInput& in,
                     std::span<const kernels::AdamCoefficients> c,
                     StepMeter& meter);
  /// The same without an exchange: the momentum is made of the gradients alone.
  void step_by_own_momentum(const StepInput& in,
                            std::span<const kernels::AdamCoefficients> c);
  /// What a rank's own momentum of a block is made of.
  [[nodiscard]] kernels::SignInput momentum_input(
      std::size_t block, ConstView grads,
      const kernels::AdamCoefficients& c) const;
  /// Momentum as values, this rank's own.
  void update_momentum(ConstView grads,
                       std::span<const kernels::AdamCoefficients> c);
  /// The momentum is what the last exchange gave; values may be dropped.
  void keep_momentum_as_signs();
  /// exp_avg holds it, whatever form it had.
  void keep_momentum_as_values();
  /// A copy as values, whatever form it has.
  [[nodiscard]] Buffer momentum() const;
  /// What a step over the denominator does to its elements `range`; exp_avg is
  /// not set.
  [[nodiscard]] kernels::FrozenUpdateArrays frozen_arrays(Range range,
                                                          const StepInput& in);

  // ---- who takes part (low_bit_gradients.cpp)
  /// `denominator` holds sqrt(v) + eps: fits it, and scales the momentum of
  /// heavy elements. `elements` says who takes part by mask and variance.
  void fit_denominators(std::vector<std::uint8_t> elements);
  void set_participation(std::vector<std::uint8_t> elements);
  [[nodiscard]] bool takes_part(std::size_t element) const {
    return participation.empty() || participation[element] == kTakesPart;
  }
  [[nodiscard]] const std::uint32_t* active_words(std::size_t block) const;
  /// Before gradients are encoded, `grad_scale` being what they will be
  /// multiplied by: late elements that have one come to life, those of heavy
  /// elements are scaled, and outliers are bounded.
  void prepare_gradients(const StepInput& in, double grad_scale,
                         StepMeter& meter, StepReport& report);
  /// The same without an exchange: nobody comes to life yet.
  void prepare_gradients_locally(const StepInput& in, double grad_scale);

  // ---- state
  [[nodiscard]] StateDict save() const;
  void load(const StateDict& state);

 private:
  void exchange_momentum(const StepInput& in,
                         std::span<const kernels::AdamCoefficients> c,
                         StepMeter& meter);
  void apply_mean(std::size_t block, kernels::Signs mean, const StepInput& in,
                  const kernels::AdamCoefficients& c);
  void verify(View params);
  void revive_late_elements(StepMeter& meter, StepReport& report);
  void scale_heavy_elements(View grads);
  void bound_outliers(View grads, double grad_scale);
  [[nodiscard]] std::vector<double> outlier_bounds() const;
  void require_residuals(const StateDict& state) const;
  void load_residuals(const StateDict& state);
};

[[nodiscard]] Buffer copy_of(ConstView values);
/// A copy of a saved array; throws Error(kCorruptCheckpoint) as StateDict does.
[[nodiscard]] Buffer saved_floats(const StateDict& state, std::string_view name,
                                  std::size_t size);

}  // namespace thinwire::optim
