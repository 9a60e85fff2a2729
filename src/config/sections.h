// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "config/archive.h"
#include "thinwire/config/config.h"

/// Sections of a file that need more than a list of fields. Each function takes
/// the file's top level and sets its part of the Config after general_fields()
/// and own_fields().
namespace thinwire::config {

/// DeepSpeed's name of a type, and its index in the variant of options.
using NamedType = std::pair<std::string_view, std::size_t>;

/// The index of each type in OptimizerConfig. AdamW is a kind of Adam, and an
/// absent optimizer means AdamW.
inline constexpr NamedType kOptimizerTypes[] = {
    {"Adam", 0},       {"Lamb", 1},        {"OneBitAdam", 2},
    {"OneBitLamb", 3}, {"ZeroOneAdam", 4}, {"AdamW", 0}};
/// Index of OneBitAdam with thinwire.lean.
inline constexpr std::size_t kOnebitAdamIndex = 2;
inline constexpr std::size_t kLeanIndex = 5;
inline constexpr std::string_view kAdamW = "AdamW";

/// Index 0 is thinwire.schedule.
inline constexpr NamedType kSchedulerTypes[] = {{"WarmupLR", 1},
                                                {"WarmupDecayLR", 2},
                                                {"WarmupCosineLR", 3},
                                                {"OneCycle", 4},
                                                {"LRRangeTest", 5}};

/// Returns the default options of the given index of OptimizerConfig.
[[nodiscard]] OptimizerConfig default_optimizer(std::size_t index);

void read_optimizer(const Reader& file, Config& config);
/// Notes the keys that have no effect because their section is off.
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
