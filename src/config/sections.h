// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "config/archive.h"
#include "thinwire/config/config.h"

/// The sections of a file that need more than a list of fields. Each function
/// takes the file's top level and sets its part of the Config, on top of what
/// general_fields() and own_fields() have set.
namespace thinwire::config {

/// DeepSpeed's name of a type, and its index in the variant of options.
using NamedType = std::pair<std::string_view, std::size_t>;

/// In the order of OptimizerConfig as far as that has names for them; AdamW is
/// an Adam too, and what an absent optimizer means.
inline constexpr NamedType kOptimizerTypes[] = {
    {"Adam", 0},       {"Lamb", 1},        {"OneBitAdam", 2},
    {"OneBitLamb", 3}, {"ZeroOneAdam", 4}, {"AdamW", 0}};
/// A OneBitAdam with thinwire.lean.
inline constexpr std::size_t kOnebitAdamIndex = 2;
inline constexpr std::size_t kLeanIndex = 5;
inline constexpr std::string_view kAdamW = "AdamW";

/// Index 0 is thinwire.schedule.
inline constexpr NamedType kSchedulerTypes[] = {{"WarmupLR", 1},
                                                {"WarmupDecayLR", 2},
                                                {"WarmupCosineLR", 3},
                                                {"OneCycle", 4},
                                                {"LRRangeTest", 5}};

/// Returns the options of an index of OptimizerConfig, with their defaults.
[[nodiscard]] OptimizerConfig default_optimizer(std::size_t index);

void read_optimizer(const Reader& file, Config& config);
/// Says in `notes` which keys have no effect, because their section is off.
void read_precision(const Reader& file, Config& config,
                    std::vector<KeyNote>& notes);
void read_schedule(const Reader& file, Config& config);

void write_optimizer(const Writer& file, const Writer& own,
                     const Config& config);
void write_precision(const Writer& file, const Writer& own,
                     const Config& config);
void write_schedule(const Writer& file, const Writer& own,
                    const Config& config);

}  // namespace thinwire::config
