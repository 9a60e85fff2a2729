// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/core/state_dict.h"

namespace thinwire::precision {

/// What an overflow does when the loss scale cannot fall any further.
enum class AtMinimum {
  kStop,  ///< Error(kNonFinite): no scale suits this model any more.
  kHold,  ///< The step is skipped, the scale stays.
};

/// Settings of a LossScaler; the defaults are those of DeepSpeed's
/// configuration files.
struct LossScalerOptions {
  double initial_scale = 65536;  ///< Finite, > 0.
  /// false: the scale is initial_scale for ever, and nothing below matters.
  bool dynamic = true;
  /// Steps without overflow, after the first one, until the scale doubles;
  /// >= 1.
  std::int64_t window = 1000;
  /// The scale halves at this many overflows, and at every one after that until
  /// it has grown again; >= 1.
  std::int64_t hysteresis = 2;
  /// Any step without overflow starts the count of overflows anew.
  bool consecutive_hysteresis = false;
  double min_scale = 1;  ///< Finite, > 0, <= initial_scale.
  /// Growth ends here; >= min_scale and initial_scale, infinity: never.
  double max_scale = 4294967296.0;
  AtMinimum at_minimum = AtMinimum::kStop;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
  /// All of them in one line, without a newline.
  [[nodiscard]] std::string describe() const;

  bool operator==(const LossScalerOptions&) const = default;
};

/// The factor that keeps small gradients representable in fp16
/// (arXiv:1710.03740). Local and deterministic: ranks that report the same
/// overflows have the same scale.
///
/// The first growth after the start or an overflow comes after window + 1 clean
/// steps, every further one after `window`, as in DeepSpeed.
class LossScaler {
 public:
  /// Throws Error(kInvalidArgument) as LossScalerOptions::validate.
  explicit LossScaler(const LossScalerOptions& options = {});
  /// Of options that validate() may refuse, and the caller has checked. With a
  /// hysteresis of 0 the scale never falls; with a min_scale above
  /// initial_scale the first overflow that counts raises it.
  [[nodiscard]] static LossScaler unchecked(const LossScalerOptions& options);

  [[nodiscard]] const LossScalerOptions& options() const noexcept {
    return options_;
  }
  /// What the next loss is to be multiplied by.
  [[nodiscard]] double scale() const noexcept { return scale_; }
  /// The scale continues from this value: finite, > 0 and, if it is dynamic,
  /// within min_scale and max_scale; else Error(kInvalidArgument).
  void set_scale(double scale);
  /// Another overflow now would meet the policy at the minimum.
  [[nodiscard]] bool is_at_minimum() const noexcept;

  /// A step has ended, and its gradients have been unscaled with scale().
  /// Throws Error(kNonFinite), and changes nothing, at the minimum with kStop.
  void update(bool overflow);

  void save(StateDict& state) const;
  /// Takes the numbers that move, not the settings. Throws
  /// Error(kCorruptCheckpoint) before anything changes.
  void load(const StateDict& state);

 private:
  void begin(const LossScalerOptions& options);
  void adapt(bool overflow);

  LossScalerOptions options_;
  double scale_ = 1;
  std::int64_t overflows_left_ = 1;  ///< Until the scale halves.
  std::int64_t steps_ = 0;
  std::int64_t last_overflow_ = -1;
};

}  // namespace thinwire::precision
