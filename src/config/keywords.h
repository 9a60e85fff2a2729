// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/archive.h"
#include "core/json_text.h"
#include "thinwire/config/config.h"

/// Optimizers whose options are given by name and without a file, as Python's
/// keywords are.
namespace thinwire::config {

/// Gives `config` an optimizer of `type`, for example "OnebitAdam". Sets the
/// fields that `given` names, among keyword_fields() and `outer`. A null leaves
/// the value of `config` unchanged. `others` are keywords that the caller reads
/// itself. Throws Error(kInvalidArgument) naming the keyword, its range and its
/// value, and WrongType for unknown keywords and wrong types. After an error
/// nothing has changed.
void set_optimizer(Config& config, std::string_view type,
                   const JsonValue& given,
                   const std::vector<std::string>& others = {});

/// Sets the groups of `config.optimizer`: an object of options for each, and
/// its MaskedGroup::exp_avg_mask. Errors are those of set_optimizer(), and name
/// an option as "param_groups[1]['lr']".
void set_groups(Config& config, const std::vector<JsonValue>& groups,
                const std::vector<std::vector<float>>& masks);

/// Returns a text of the groups, with a checksum of each mask.
[[nodiscard]] std::string describe_groups(const OptimizerConfig& optimizer);

}  // namespace thinwire::config
