// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace thinwire::config {

/// DeepSpeed's names, indexed as OptimizerConfig as far as it has names for
/// them; AdamW is an Adam too, and what an absent optimizer means.
inline constexpr std::string_view kOptimizerTypes[] = {
    "Adam", "Lamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "AdamW"};
/// A OneBitAdam with thinwire.lean.
inline constexpr std::size_t kOnebitAdamIndex = 2;
inline constexpr std::size_t kLeanIndex = 5;
inline constexpr std::string_view kAdamW = "AdamW";

inline constexpr std::string_view kSchedulerTypes[] = {
    "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"};

}  // namespace thinwire::config
