// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/core/state_dict.h"

namespace thinwire::precision {

/// Effect of an overflow when the loss scale cannot fall any further.
enum class AtMinimum {
  kStop,  ///< Error(kNonFinite): no scale suits this model any more.
  kHold,  ///< Skips the step and keeps the scale.
};

/// Settings of a LossScaler. The defaults, except max_scale, are those of
/// DeepSpeed's configuration files.
struct LossScalerOptions {
  double initial_scale = 65536;  ///< In [2^-126, 2^127], as fp32 has it.
  /// Whether the scale changes. If not, it stays initial_scale, and the fields
  /// below do not matter.
  bool dynamic = true;
  /// Steps without overflow, after the first one, until the scale doubles; >=
  /// 1.
  std::int64_t window = 1000;
  /// Number of overflows at which the scale halves; >= 1. It then halves at
  /// every further one until it has grown again.
  std::int64_t hysteresis = 2;
  /// Whether any step without overflow resets the count of overflows.
  bool consecutive_hysteresis = false;
  double min_scale = 1;  ///< Finite, > 0, <= initial_scale.
  /// Upper limit of growth; >= min_scale and initial_scale. Infinity for none.
  double max_scale = 4294967296.0;
  AtMinimum at_minimum = AtMinimum::kStop;

  /// Checks the options. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate() const;
  /// Returns all of them in one line, without a newline.
  [[nodiscard]] std::string describe() const;

  bool operator==(const LossScalerOptions&) const = default;
};

/// The factor that keeps small gradients representable in fp16
/// (arXiv:1710.03740). Local and deterministic: ranks that report the same
/// overflows have the same scale.
///
/// The first growth after the start or an overflow happens after window + 1
/// clean steps, every further one after `window`, as in DeepSpeed.
class LossScaler {
 public:
  /// Starts at the initial scale. Throws Error(kInvalidArgument) like
  /// LossScalerOptions::validate.
  explicit LossScaler(const LossScalerOptions& options = {});
  /// Makes a scaler of options that the caller has checked, although validate()
  /// may reject them. With a hysteresis of 0 the scale never falls. With a
  /// min_scale above initial_scale the first overflow that counts raises it.
  [[nodiscard]] static LossScaler unchecked(const LossScalerOptions& options);

  [[nodiscard]] const LossScalerOptions& options() const noexcept {
    return options_;
  }
  /// Returns the factor for the next loss.
  [[nodiscard]] double scale() const noexcept { return scale_; }
  /// Sets the scale, which continues from this value. Throws
  /// Error(kInvalidArgument) unless it is in [2^-126, 2^127] and, if the scale
  /// is dynamic, within min_scale and max_scale.
  void set_scale(double scale);
  /// Returns whether another overflow now would meet the policy at the minimum.
  [[nodiscard]] bool is_at_minimum() const noexcept;

  /// Adapts the scale after a step whose gradients were unscaled with scale().
  /// Throws Error(kNonFinite), and changes nothing, at the minimum with kStop.
  void update(bool overflow);

  void save(StateDict& state) const;
  /// Restores the numbers that change, not the settings. Throws
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
