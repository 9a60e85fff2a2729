// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace thinwire::config {

/// DeepSpeed's names, indexed as OptimizerConfig; AdamW is an Adam too, and
/// what an absent optimizer means.
inline constexpr std::string_view kOptimizerTypes[] = {
    "Adam", "Lamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "AdamW"};
inline constexpr std::string_view kAdamW = "AdamW";

inline constexpr std::string_view kSchedulerTypes[] = {
    "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"};

}  // namespace thinwire::config
