// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/core/state_dict.h"

namespace thinwire::precision {

/// Effect of an overflow when the loss scale cannot fall any further.
enum class AtMinimum {
  kStop,  ///< Throws Error(kNonFinite), because no scale suits this model.
  kHold,  ///< Skips the step and keeps the scale.
};

/// Settings of a LossScaler. The defaults, except max_scale, are those of
/// DeepSpeed's configuration files.
struct LossScalerOptions {
  double initial_scale = 65536;  ///< In [2^-126, 2^127], rounded to fp32.
  /// Whether the scale changes. If false, it remains initial_scale, and the
  /// fields below have no effect.
  bool dynamic = true;
  /// Number (>= 1) of steps without overflow, after the first one, until the
  /// scale doubles.
  std::int64_t window = 1000;
  /// Number (>= 1) of overflows at which the scale halves. It then halves at
  /// every further overflow until it has grown again.
  std::int64_t hysteresis = 2;
  /// Whether any step without overflow resets the count of overflows.
  bool consecutive_hysteresis = false;
  double min_scale = 1;  ///< Finite, > 0, <= initial_scale.
  /// Upper limit of growth; >= min_scale and initial_scale. Infinity for none.
  double max_scale = 4294967296.0;
  AtMinimum at_minimum = AtMinimum::kStop;

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options, without a newline.
  [[nodiscard]] std::string describe() const;

  bool operator==(const LossScalerOptions&) const = default;
};

/// The factor that keeps small gradients representable in fp16
/// (arXiv:1710.03740). Local and deterministic: ranks that report the same
/// overflows have the same scale.
///
/// The scale first grows after window + 1 steps without overflow, counted from
/// the start or the last overflow. It then grows after every further `window`
/// steps, as in DeepSpeed.
class LossScaler {
 public:
  /// Starts at the initial scale. Throws Error(kInvalidArgument) like
  /// LossScalerOptions::validate.
  explicit LossScaler(const LossScalerOptions& options = {});
  /// Creates a scaler with options that the caller has checked, even if
  /// validate() would reject them. With a hysteresis of 0 the scale never
  /// falls. If min_scale is above initial_scale, the first overflow that counts
  /// raises the scale.
  [[nodiscard]] static LossScaler unchecked(const LossScalerOptions& options);

  [[nodiscard]] const LossScalerOptions& options() const noexcept {
    return options_;
  }
  /// Returns the factor for the next loss.
  [[nodiscard]] double scale() const noexcept { return scale_; }
  /// Sets the scale, which changes from this value on. Throws
  /// Error(kInvalidArgument) unless it is in [2^-126, 2^127] and, if the scale
  /// is dynamic, between min_scale and max_scale.
  void set_scale(double scale);
  /// Returns whether another overflow would find the scale at its minimum.
  [[nodiscard]] bool is_at_minimum() const noexcept;

  /// Adapts the scale after a step whose gradients were unscaled with scale().
  /// At the minimum with kStop, throws Error(kNonFinite) and changes nothing.
  void update(bool overflow);

  void save(StateDict& state) const;
  /// Restores the scale and the counters, but not the settings. Throws
  /// Error(kCorruptCheckpoint) before anything changes.
  void load(const StateDict& state);

 private:
  void begin(const LossScalerOptions& options);
  void adapt(bool overflow);

  LossScalerOptions options_;
  double scale_ = 1;
  std::int64_t overflows_left_ = 1;  ///< Overflows until the scale halves.
  std::int64_t steps_ = 0;
  std::int64_t last_overflow_ = -1;
};

}  // namespace thinwire::precision
