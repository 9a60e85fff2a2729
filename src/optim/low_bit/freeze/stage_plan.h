// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// The last step of the first stage as options and a state have it. A number
/// that the caller names decides the stage, after a load too; one that is
/// derived or a default gives way to that of a state.
class StagePlan {
 public:
  StagePlan() = default;
  /// `named` may be kAutoFreeze; `planned` is what follows from all options.
  StagePlan(std::optional<std::int64_t> named, std::int64_t planned)
      : named_(named), own_(planned), step_(planned) {}

  /// May be kAutoFreeze.
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// `key`: the option's name.
  void save(StateDict& state, const char* key) const {
    state.put_integer(key, step_);
  }
  /// With what a state says, where nothing is named. States of versions before
  /// 0.8 say nothing. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] StagePlan after(const StateDict& state, const char* key) const;

  /// Returns whether the caller has named a step that is later than `steps`.
  [[nodiscard]] bool names_later(std::int64_t steps) const;
  /// Returns whether the caller has named a step that has passed.
  [[nodiscard]] bool names_passed(std::int64_t steps) const;

 private:
  std::optional<std::int64_t> named_;
  std::int64_t own_ = 1;
  std::int64_t step_ = 1;
};

/// Returns a load's note on exact steps that continue because `planned` lies
/// ahead.
[[nodiscard]] std::string note_of_return(std::string_view option,
                                         std::int64_t planned,
                                         std::int64_t steps,
                                         bool variance_was_dropped);
/// "freeze_step is 3 and step 6 is past it: compression begins now".
[[nodiscard]] std::string note_of_end(std::string_view option,
                                      std::int64_t planned, std::int64_t steps);

}  // namespace thinwire::optim
